//! What the fuzz targets do with their input: plain functions of bytes, so that the corpora are also replayed by a plain test
//! (`tests/it/fuzz_corpus.rs`).
#![allow(dead_code)] // each target uses one

pub mod acl;
pub mod aof;
pub mod config;
pub mod function_payload;
pub mod glob;
pub mod hyperloglog;
pub mod inline;
pub mod link;
pub mod listpack;
pub mod manifest;
pub mod packed;
pub mod rdb;
pub mod request;
pub mod restore;
pub mod script_libraries;
pub mod stream;

/// The first bytes and the rest; zeros where there are fewer.
fn split_first<const N: usize>(input: &[u8]) -> (&[u8; N], &[u8]) {
    input.split_first_chunk().unwrap_or((&[0; N], &[]))
}

/// As many bytes as the first two say, little-endian, at most all there are, and the rest.
fn split_len(input: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = split_first(input);
    rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()))
}

/// What stands before the first line end, and behind it.
fn at_line_end(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    (&input[..end], input.get(end + 1..).unwrap_or_default())
}

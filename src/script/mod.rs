//! Scripts: the libraries they may use.

#![allow(unsafe_code)] // Luau's C interface.

pub mod bit;
pub mod cjson;
pub mod cmsgpack;
mod library;
mod number;
pub mod structs;

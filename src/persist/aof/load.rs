//! Loading the append-only file: its files in the manifest's order, request by request. A thread
//! reads ahead.
//!
//! Requests and the RDB base go to a [`Sink`], which applies them; if it cannot, loading fails. If
//! a crash has cut the last file short, it is truncated after its last complete command or
//! transaction, provided that `aof-load-truncated` is set. Damage at its end is cut off if
//! `aof-load-corrupt-tail-max-size` allows as many bytes. Any other fault makes loading fail with a
//! line that names file, offset and fault; the files stay unchanged.
//!
//! Where an earlier process could not sync a file ([`AofFolder::is_marked`]) a power loss may leave
//! a hole in that file, or cut short a file before the last. Then loading ends there, as no later
//! data was promised to survive a power loss; the start writes the loaded data to a new base.
//!
//! "The last file" is the last one that is not empty: a crash at the start of a rewrite can leave
//! an empty one after it.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};

use super::ahead::{self, BATCHES_AHEAD, Batch};
use super::folder::{AofFolder, FolderError};
use super::reader::{End, Fault, Reader, Request, Tail};
use crate::config::system_text;
use crate::sys::alloc;
use crate::sys::disk::DiskReader;

/// Requests that are prefetched together: enough for their cache misses to overlap.
const PREFETCHED: usize = 64;

/// Applies the loaded data.
pub trait Sink {
    /// A file begins: the sink selects database 0 and forgets an open transaction.
    fn file_begins(&mut self, name: &[u8], bytes: u64);

    /// Loads the RDB image at the start of `source`, a file of `bytes` bytes. Returns the image's
    /// length; the source may be left at any position. Errors: a text.
    fn rdb(&mut self, source: &mut dyn DiskReader, bytes: u64) -> Result<u64, String>;

    /// Prefetches the data of requests of a batch, which [`Sink::request`] gets next, one by one.
    fn prefetch(&mut self, _batch: &Batch, _requests: Range<usize>) {}

    /// Applies a request. One that is [`Request::in_transaction`] must be queued until EXEC.
    /// Errors: a text.
    fn request(&mut self, request: &Request<'_>) -> Result<(), String>;

    /// The file ended within a transaction: its queued requests must be dropped.
    fn transaction_abandoned(&mut self);
}

/// What may be cut off the last file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// An incomplete request or transaction. Source: `aof-load-truncated`.
    pub truncated: bool,
    /// Bytes from the last valid request on, if there is damage. Source:
    /// `aof-load-corrupt-tail-max-size`.
    pub corrupt_bytes_max: u64,
}

impl Cuts {
    pub const NONE: Self = Cuts { truncated: false, corrupt_bytes_max: 0 };
}

/// The result of loading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes of all files, after truncation.
    pub bytes: u64,
    /// Bytes of the base, from which growth is computed.
    pub base_bytes: u64,
    /// Warnings for the log: what was truncated and why.
    pub warnings: Vec<String>,
}

/// Whether a file begins with an RDB image.
pub fn is_rdb(source: &mut dyn DiskReader) -> io::Result<bool> {
    let mut start = Vec::with_capacity(6);
    (&mut *source).take(6).read_to_end(&mut start)?;
    source.seek(SeekFrom::Start(0))?;
    Ok(start.starts_with(b"REDIS") || start.starts_with(b"VALKEY"))
}

impl AofFolder {
    /// Loads all files. After an error they are unchanged, and `sink` has received everything
    /// before it.
    pub fn load(&self, cuts: Cuts, sink: &mut dyn Sink) -> Result<Loaded, FolderError> {
        // Missing files are found before anything is loaded.
        self.size()?;
        let files: Vec<_> = self.manifest().files().map(|file| file.name.clone()).collect();
        let mut sizes = Vec::with_capacity(files.len());
        for name in &files {
            sizes.push(self.disk().size(&self.path_of(name)).map_err(|e| unreadable(name, e))?);
        }
        if let (Some(base), Some(bytes)) = (self.manifest().base(), sizes.first())
            && self.manifest().is_base_emptied(*bytes)
        {
            return Err(refusal(format!(
                "Fatal error: the AOF base file {} is empty, so its data is lost: put a copy of this file back, or remove the \
                 line of its name from {} to begin without its data",
                self.path_of(&base.name).display(),
                self.manifest_path().display()
            )));
        }
        let last = sizes.iter().rposition(|size| *size > 0);
        let mut loaded = Loaded::default();
        for (index, (name, size)) in files.iter().zip(&sizes).enumerate() {
            let end = self.load_file(name, *size, sink)?;
            let is_last = last.is_none_or(|last| index >= last);
            let kept = self.check_end(name, &end, cuts, is_last, sink, &mut loaded.warnings)?;
            loaded.bytes += kept;
            if kept < end.size && !is_last {
                break;
            }
        }
        loaded.base_bytes = self.base_size();
        Ok(loaded)
    }

    fn load_file(&self, name: &[u8], size: u64, sink: &mut dyn Sink) -> Result<End, FolderError> {
        let opened = self.disk().open_read(&self.path_of(name));
        let mut source = opened.map_err(|error| unreadable(name, error))?;
        sink.file_begins(name, size);
        let mut offset = 0;
        if is_rdb(&mut *source).map_err(|error| unreadable(name, error))? {
            offset = sink.rdb(&mut *source, size).map_err(|why| {
                refusal(format!(
                    "Error reading the RDB base file {}, AOF loading aborted: {why}",
                    String::from_utf8_lossy(name)
                ))
            })?;
            source.seek(SeekFrom::Start(offset)).map_err(|error| unreadable(name, error))?;
        }
        let reader = Reader::new(source, offset.min(size), size);
        let (sender, batches) = sync_channel(BATCHES_AHEAD);
        let account = alloc::Account::of_thread();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("loader".into());
            let spawned = thread.spawn_scoped(scope, move || {
                account.enter();
                ahead::read(reader, &sender);
                drop(sender);
                alloc::hand_over();
            });
            spawned.map_err(|error| unreadable(name, error))?;
            apply(name, batches, sink)
        })
    }

    /// Truncates a file that ends badly, if that is allowed. Returns its length then. Errors: it
    /// must not be truncated.
    fn check_end(
        &self,
        name: &[u8],
        end: &End,
        cuts: Cuts,
        is_last: bool,
        sink: &mut dyn Sink,
        warnings: &mut Vec<String>,
    ) -> Result<u64, FolderError> {
        let text = String::from_utf8_lossy(name);
        let has_lost_some = cuts.truncated && self.is_marked();
        let is_hole = matches!(&end.tail, Tail::Damage(fault) if fault.kind.is_nul());
        let fault = match &end.tail {
            Tail::Clean => return Ok(end.size),
            Tail::Damage(fault) if is_hole && has_lost_some => {
                format!("NULs from offset {} of the AOF file {text}", fault.at)
            }
            Tail::Damage(fault) => {
                let Fault { kind, field_at, at } = fault;
                let (cut_at, size) = (end.valid_up_to, end.size);
                let lost = size - cut_at;
                if is_last && lost <= cuts.corrupt_bytes_max {
                    sink.transaction_abandoned();
                    self.cut(name, cut_at)?;
                    warnings.push(format!(
                        "!!! Warning: corrupt AOF file tail!!! {kind} at offset {at}"
                    ));
                    warnings.push(format!(
                        "!!! Truncating the AOF {text} at offset {cut_at} (remaining {lost}) !!!"
                    ));
                    warnings.push(format!(
                        "AOF {text} loaded anyway because aof-load-corrupt-tail-max-size is enabled"
                    ));
                    return Ok(cut_at);
                }
                let alternative = match is_last {
                    true => format!(
                        ". Alternatively you can set the 'aof-load-corrupt-tail-max-size' configuration option to {lost} and \
                         restart the server: what follows offset {cut_at} is cut off then"
                    ),
                    false => String::new(),
                };
                return Err(refusal(format!(
                    "Bad file format reading the append only file {text}: {kind} at offset {at} (of {size}; line or argument \
                     at {field_at}): make a backup of your AOF file, then use latchkey --check-aof --fix \
                     <filename.manifest>{alternative}"
                )));
            }
            Tail::OpenTransaction => {
                format!("Revert incomplete MULTI/EXEC transaction in AOF file {text}")
            }
            Tail::Cut(fault) => {
                format!(
                    "short read while loading the AOF file {text}: {} at offset {}",
                    fault.kind, fault.field_at
                )
            }
            Tail::Nuls(fault) => {
                format!("NULs from offset {} to the end of the AOF file {text}", fault.at)
            }
        };
        let cut_at = end.valid_up_to;
        if has_lost_some && (!is_last || is_hole) {
            sink.transaction_abandoned();
            warnings.push(format!("!!! Warning: {fault}!!!"));
            warnings.push(format!(
                "AOF {text} ends at offset {cut_at}, and what follows is left out: an earlier process could not fsync it"
            ));
            return Ok(cut_at);
        }
        if !is_last {
            return Err(refusal(format!(
                "Fatal error: the truncated file is not the last file: {fault}; whole up to offset {cut_at} of {}",
                end.size
            )));
        }
        if !cuts.truncated {
            return Err(refusal(format!(
                "Unexpected end of file reading the append only file {text}: {fault}; whole up to offset {cut_at} of {}. You can: \
                 1) Make a backup of your AOF file, then use ./redis-check-aof --fix <filename.manifest>. 2) Alternatively you can \
                 set the 'aof-load-truncated' configuration option to yes and restart the server.",
                end.size
            )));
        }
        sink.transaction_abandoned();
        self.cut(name, cut_at)?;
        warnings.push(format!("!!! Warning: {fault}!!!"));
        warnings.push(format!("!!! Truncating the AOF {text} at offset {cut_at} !!!"));
        warnings.push(format!(
            "AOF {text} loaded anyway because aof-load-truncated is enabled ({} bytes cut)",
            end.size - cut_at
        ));
        Ok(cut_at)
    }

    fn cut(&self, name: &[u8], at: u64) -> Result<(), FolderError> {
        let cut = self.disk().open_append(&self.path_of(name)).and_then(|file| {
            file.set_len(at)?;
            file.sync_data()
        });
        cut.map_err(|error| {
            let name = String::from_utf8_lossy(name);
            refusal(format!("Error truncating the AOF file {name}: {}", system_text(&error)))
        })
    }
}

/// Applies the batches of the reading thread; that thread ends when the channel is closed.
fn apply(name: &[u8], batches: Receiver<Batch>, sink: &mut dyn Sink) -> Result<End, FolderError> {
    for batch in batches {
        for index in 0..batch.len() {
            if index.is_multiple_of(PREFETCHED) {
                sink.prefetch(&batch, index..batch.len().min(index + PREFETCHED));
            }
            let request = batch.get(index);
            sink.request(&request).map_err(|why| {
                let name = String::from_utf8_lossy(name);
                let at = request.offset;
                refusal(format!("{why} (append only file {name}, offset {at})"))
            })?;
        }
        if let Some(end) = batch.end {
            return end.map_err(|error| unreadable(name, error));
        }
    }
    Err(refusal("the thread that reads the append only file has ended".into()))
}

fn refusal(text: String) -> FolderError {
    FolderError { text, source: None }
}

fn unreadable(name: &[u8], error: io::Error) -> FolderError {
    let text = format!(
        "Unrecoverable error reading the append only file {}: {}",
        String::from_utf8_lossy(name),
        system_text(&error)
    );
    FolderError { text, source: Some(error) }
}

#[cfg(test)]
mod tests;

//! Loading: the files of the folder in the manifest's order, handed up request by request. A thread reads ahead.
//!
//! Requests and the RDB base go to a [`Sink`], which applies them; what it cannot apply ends the loading. The last file may
//! end as a crash leaves it, and is cut back to its last whole command or transaction, if `aof-load-truncated` says so.
//! Whatever else is wrong refuses, the files untouched, in one line that names file, offset and fault.
//!
//! "The last file" is the last one with anything in it: a crash while a rewrite began can leave an empty one behind it.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};

use super::ahead::{self, BATCHES_AHEAD, Batch};
use super::folder::{AofFolder, FolderError};
use super::reader::{End, Fault, Reader, Request, Tail};
use crate::config::system_text;
use crate::sys::alloc;
use crate::sys::disk::DiskReader;

/// Requests that are told of together before they come: enough for their cache misses to overlap.
const COMING: usize = 64;

/// Who applies what is loaded.
pub trait Sink {
    /// A file begins: database 0 is selected, no transaction is open.
    fn file_begins(&mut self, name: &[u8], bytes: u64);

    /// An RDB image begins at the start of `source`, a file of `bytes` bytes. Returns how many it has; the file's position
    /// afterwards does not matter. An error is the text of why it is refused.
    fn rdb(&mut self, source: &mut dyn DiskReader, bytes: u64) -> Result<u64, String>;

    /// So many requests of a batch, from one on, will come next, one by one.
    fn coming(&mut self, _batch: &Batch, _requests: Range<usize>) {}

    /// A request. What is [`Request::in_transaction`] is to be kept until EXEC comes. An error is the text of why it cannot be
    /// applied.
    fn request(&mut self, request: &Request<'_>) -> Result<(), String>;

    /// The file ended within a transaction: what is kept of it is to be forgotten.
    fn transaction_abandoned(&mut self);
}

/// What was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes of all files, as they are now.
    pub bytes: u64,
    /// Bytes of the base, which growth is measured against.
    pub base_bytes: u64,
    /// Lines for the log, of the level of warnings: what was cut and why.
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
    /// Loads all files. `may_cut` is `aof-load-truncated`. After an error the files are as they were, and `sink` has what was
    /// loaded before it.
    pub fn load(&self, may_cut: bool, sink: &mut dyn Sink) -> Result<Loaded, FolderError> {
        // All are there, before the first one is loaded.
        self.size()?;
        let files: Vec<_> = self.manifest().files().map(|file| file.name.clone()).collect();
        let mut sizes = Vec::with_capacity(files.len());
        for name in &files {
            sizes.push(self.disk().size(&self.path_of(name)).map_err(|e| unreadable(name, e))?);
        }
        let last = sizes.iter().rposition(|size| *size > 0);
        let mut loaded = Loaded::default();
        for (index, (name, size)) in files.iter().zip(&sizes).enumerate() {
            let end = self.load_file(name, *size, sink)?;
            let is_last = last.is_none_or(|last| index >= last);
            let kept = self.settle(name, &end, may_cut, is_last, sink, &mut loaded.warnings)?;
            loaded.bytes += kept;
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
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("loader".into());
            let spawned = thread.spawn_scoped(scope, move || {
                ahead::read(reader, &sender);
                drop(sender);
                alloc::hand_over();
            });
            spawned.map_err(|error| unreadable(name, error))?;
            apply(name, batches, sink)
        })
    }

    /// Judges how a file ended. Returns the bytes of it that count.
    fn settle(
        &self,
        name: &[u8],
        end: &End,
        may_cut: bool,
        is_last: bool,
        sink: &mut dyn Sink,
        warnings: &mut Vec<String>,
    ) -> Result<u64, FolderError> {
        let text = String::from_utf8_lossy(name);
        let fault = match &end.tail {
            Tail::Clean => return Ok(end.size),
            Tail::Damage(fault) => {
                let Fault { kind, field_at, at } = fault;
                let size = end.size;
                return Err(refusal(format!(
                    "Bad file format reading the append only file {text}: {kind} at offset {at} (of {size}; line or argument \
                     at {field_at}): make a backup of your AOF file, then use ./redis-check-aof --fix <filename.manifest>"
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
        if !is_last {
            return Err(refusal(format!(
                "Fatal error: the truncated file is not the last file: {fault}; whole up to offset {cut_at} of {}",
                end.size
            )));
        }
        if !may_cut {
            return Err(refusal(format!(
                "Unexpected end of file reading the append only file {text}: {fault}; whole up to offset {cut_at} of {}. You can: \
                 1) Make a backup of your AOF file, then use ./redis-check-aof --fix <filename.manifest>. 2) Alternatively you can \
                 set the 'aof-load-truncated' configuration option to yes and restart the server.",
                end.size
            )));
        }
        sink.transaction_abandoned();
        let cut = self.disk().open_append(&self.path_of(name)).and_then(|file| {
            file.set_len(cut_at)?;
            file.sync_data()
        });
        cut.map_err(|error| {
            refusal(format!("Error truncating the AOF file {text}: {}", system_text(&error)))
        })?;
        warnings.push(format!("!!! Warning: {fault}!!!"));
        warnings.push(format!("!!! Truncating the AOF {text} at offset {cut_at} !!!"));
        warnings.push(format!(
            "AOF {text} loaded anyway because aof-load-truncated is enabled ({} bytes cut)",
            end.size - cut_at
        ));
        Ok(cut_at)
    }
}

/// Has what was read ahead applied; the thread that reads ends with the channel.
fn apply(name: &[u8], batches: Receiver<Batch>, sink: &mut dyn Sink) -> Result<End, FolderError> {
    for batch in batches {
        for index in 0..batch.len() {
            if index.is_multiple_of(COMING) {
                sink.coming(&batch, index..batch.len().min(index + COMING));
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

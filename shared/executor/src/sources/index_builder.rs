//! Indexing a file: by pushing all of it in order, or by reading what the builder asks for.

use super::{FileIndex, Limits, csv, encoding, gzip, jsonl, parquet, tfrecord, webdataset};
use crate::ExecError;
use bytes::Bytes;
use gristmill_pipeline::Format;
use std::ops::Range;

/// Bytes asked for at a time.
const READ_BYTES: u64 = 16 << 20;
/// Bytes that tell a compressed file from another.
const HEAD_BYTES: usize = 12;
/// Largest Parquet file that is pushed in order, and so kept in memory.
const MAX_KEPT_BYTES: usize = 1 << 30;

/// Builds the index of a file.
///
/// [`IndexBuilder::new`] and [`push`](Self::push) take a file in order, in pieces of any size;
/// [`IndexBuilder::of_file`] and [`wants`](Self::wants) say which ranges to push, of Parquet often the
/// footer alone. Compressed files are recognised by their first bytes.
#[derive(Debug)]
pub struct IndexBuilder {
    format: Format,
    limits: Limits,
    /// Bytes of the file, if ranges of it are asked for, and how many have been pushed.
    file_bytes: Option<u64>,
    pushed: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The first bytes, before it is known what they are.
    Head(Vec<u8>),
    Plain(Builder),
    Gzip(Box<gzip::Unpacker>, Builder),
    /// All bytes of a Parquet file that is pushed in order.
    Kept(Vec<u8>),
    Parquet(Box<parquet::Indexer>),
    Failed,
}

/// Finds records in the bytes of an unpacked file.
#[derive(Debug)]
struct Builder {
    /// The first bytes of a text, until its encoding is known.
    head: Option<Vec<u8>>,
    of: Of,
}

#[derive(Debug)]
enum Of {
    TfRecord(tfrecord::IndexBuilder),
    WebDataset(webdataset::IndexBuilder),
    Jsonl(jsonl::IndexBuilder),
    Csv(Box<csv::IndexBuilder>),
}

impl Builder {
    fn new(format: Format, limits: Limits) -> Result<Self, ExecError> {
        let is_text = matches!(format, Format::Jsonl | Format::Csv(_));
        Ok(Self { head: is_text.then(Vec::new), of: Of::new(format, limits)? })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), ExecError> {
        if let Some(head) = &mut self.head {
            let room = encoding::HEAD_BYTES - head.len();
            head.extend_from_slice(&bytes[..bytes.len().min(room)]);
            encoding::check(head).map_err(ExecError::Source)?;
            if head.len() == encoding::HEAD_BYTES {
                self.head = None;
            }
        }
        self.of.push(bytes)
    }

    fn records(&self) -> u32 {
        self.of.records()
    }

    fn stop(self) -> FileIndex {
        self.of.stop()
    }

    fn finish(self) -> Result<FileIndex, ExecError> {
        self.of.finish()
    }
}

impl Of {
    fn new(format: Format, limits: Limits) -> Result<Self, ExecError> {
        match format {
            Format::TfRecord => Ok(Self::TfRecord(tfrecord::IndexBuilder::new(limits))),
            Format::WebDataset => Ok(Self::WebDataset(webdataset::IndexBuilder::new(limits))),
            Format::Jsonl => Ok(Self::Jsonl(jsonl::IndexBuilder::new(limits))),
            Format::Csv(layout) => Ok(Self::Csv(Box::new(csv::IndexBuilder::new(layout, limits)))),
            Format::Images | Format::Parquet => Err(failed()),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), ExecError> {
        match self {
            Self::TfRecord(builder) => builder.push(bytes),
            Self::WebDataset(builder) => builder.push(bytes),
            Self::Jsonl(builder) => builder.push(bytes),
            Self::Csv(builder) => builder.push(bytes),
        }
    }

    fn records(&self) -> u32 {
        match self {
            Self::TfRecord(builder) => builder.records(),
            Self::WebDataset(builder) => builder.records(),
            Self::Jsonl(builder) => builder.records(),
            Self::Csv(builder) => builder.records(),
        }
    }

    fn stop(self) -> FileIndex {
        match self {
            Self::TfRecord(builder) => builder.stop(),
            Self::WebDataset(builder) => builder.stop(),
            Self::Jsonl(builder) => builder.stop(),
            Self::Csv(builder) => builder.stop(),
        }
    }

    fn finish(self) -> Result<FileIndex, ExecError> {
        match self {
            Self::TfRecord(builder) => builder.finish(),
            Self::WebDataset(builder) => builder.finish(),
            Self::Jsonl(builder) => builder.finish(),
            Self::Csv(builder) => builder.finish(),
        }
    }
}

fn failed() -> ExecError {
    ExecError::Source("indexing this file has failed before".into())
}

impl IndexBuilder {
    /// A builder with default limits, for a file that is pushed in order.
    ///
    /// # Errors
    /// [`ExecError::Source`] for a format whose files are not indexed by reading them.
    pub fn new(format: Format) -> Result<Self, ExecError> {
        Self::with_limits(format, Limits::default())
    }

    /// A builder that refuses larger records and files with more of them.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_limits(format: Format, limits: Limits) -> Result<Self, ExecError> {
        let state = match format {
            Format::TfRecord | Format::WebDataset | Format::Jsonl | Format::Csv(_) => {
                State::Head(Vec::new())
            }
            Format::Parquet => State::Kept(Vec::new()),
            Format::Images => {
                return Err(ExecError::Source("a file of one image needs no index".into()));
            }
        };
        Ok(Self { format, limits, file_bytes: None, pushed: 0, state })
    }

    /// A builder for a file of `file_bytes`, which asks for what it needs; see
    /// [`wants`](Self::wants).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_file(format: Format, file_bytes: u64) -> Result<Self, ExecError> {
        let mut builder = Self::new(format)?;
        builder.file_bytes = Some(file_bytes);
        if format == Format::Parquet {
            builder.state =
                State::Parquet(Box::new(parquet::Indexer::new(file_bytes, builder.limits)));
        }
        Ok(builder)
    }

    /// The part of the file to push next; none when all is known, or the file is pushed in order.
    pub fn wants(&self) -> Option<Range<u64>> {
        let file_bytes = self.file_bytes?;
        match &self.state {
            State::Parquet(indexer) => indexer.wants(),
            State::Failed => None,
            _ if self.pushed >= file_bytes => None,
            _ => Some(self.pushed..file_bytes.min(self.pushed + READ_BYTES)),
        }
    }

    /// Takes the next bytes of the file, or those it [`wants`](Self::wants).
    ///
    /// # Errors
    /// [`ExecError::Source`] naming record and byte offset; the builder is of no use after that.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ExecError> {
        self.pushed += bytes.len() as u64;
        let pushed = self.take(bytes);
        if pushed.is_err() {
            self.state = State::Failed;
        }
        pushed
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), ExecError> {
        match &mut self.state {
            State::Head(head) => {
                head.extend_from_slice(bytes);
                match head.len() < HEAD_BYTES {
                    true => Ok(()),
                    false => self.begin(),
                }
            }
            State::Plain(builder) => builder.push(bytes),
            State::Gzip(unpacker, builder) => {
                unpacker.push(bytes, ExecError::Source, |unpacked| builder.push(unpacked))
            }
            State::Kept(kept) if kept.len() + bytes.len() > MAX_KEPT_BYTES => {
                Err(ExecError::Source(format!(
                    "it has more than {MAX_KEPT_BYTES} bytes, too many to be pushed in order"
                )))
            }
            State::Kept(kept) => {
                kept.extend_from_slice(bytes);
                Ok(())
            }
            State::Parquet(indexer) => {
                indexer.push(Bytes::copy_from_slice(bytes)).map_err(ExecError::Source)
            }
            State::Failed => Err(failed()),
        }
    }

    /// Decides what the file is by its first bytes, and takes them in.
    fn begin(&mut self) -> Result<(), ExecError> {
        let State::Head(head) = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(failed());
        };
        let builder = Builder::new(self.format, self.limits)?;
        self.state = match gzip::is_gzip(&head, self.format) {
            true => State::Gzip(Box::default(), builder),
            false => State::Plain(builder),
        };
        self.take(&head)
    }

    /// Records found whole so far; of Parquet none before all are.
    pub fn records(&self) -> u32 {
        match &self.state {
            State::Plain(builder) | State::Gzip(_, builder) => builder.records(),
            State::Head(_) | State::Kept(_) | State::Parquet(_) | State::Failed => 0,
        }
    }

    /// An index by which the [`records`](Self::records) found so far can be read, though the rest of the file
    /// has not been pushed. That of a file of which everything has been is [`finish`](Self::finish)'s.
    ///
    /// # Errors
    /// [`ExecError::Source`] if none has been found.
    pub fn stop(self) -> Result<FileIndex, ExecError> {
        match self.state {
            State::Plain(builder) => Ok(builder.stop()),
            State::Gzip(unpacker, builder) => Ok(builder.stop().gzip(unpacker.stop())),
            State::Head(_) | State::Kept(_) | State::Parquet(_) | State::Failed => Err(failed()),
        }
    }

    /// The index, now that all bytes have been pushed.
    ///
    /// # Errors
    /// [`ExecError::Source`] if the file ends inside a record.
    pub fn finish(mut self) -> Result<FileIndex, ExecError> {
        if let State::Head(_) = self.state {
            self.begin()?;
        }
        match self.state {
            State::Plain(builder) => builder.finish(),
            State::Gzip(unpacker, builder) => {
                let points = unpacker.finish().map_err(ExecError::Source)?;
                Ok(builder.finish()?.gzip(points))
            }
            State::Kept(kept) => {
                let kept = Bytes::from(kept);
                let mut indexer = parquet::Indexer::new(kept.len() as u64, self.limits);
                // What is wanted lies in the file, of which this is all.
                while let Some(range) = indexer.wants() {
                    let part = kept.slice(range.start as usize..range.end as usize);
                    indexer.push(part).map_err(ExecError::Source)?;
                }
                indexer.finish().map(FileIndex::parquet).map_err(ExecError::Source)
            }
            State::Parquet(indexer) => {
                indexer.finish().map(FileIndex::parquet).map_err(ExecError::Source)
            }
            State::Head(_) | State::Failed => Err(failed()),
        }
    }
}

//! Indexing a file: by pushing all of it in order, or by reading what the builder asks for.

use crate::{
    FileFormat, FileIndex, FooterIndexer, IndexKind, RecordScanner, SourceError, SourceLimits,
    frames::{self, FrameKind, FrameUnpacker},
    gzip,
};
use bytes::Bytes;
use std::ops::Range;

/// Bytes asked for at a time.
const READ_BYTES: u64 = 16 << 20;
/// Bytes that tell a compressed file from another.
const HEAD_BYTES: usize = 12;
/// Largest file with a footer that is pushed in order, and so kept in memory.
const MAX_KEPT_BYTES: usize = 1 << 30;

/// Builds the index of a file.
///
/// [`IndexBuilder::new`] and [`push`](Self::push) take a file in order, in pieces of any size;
/// [`IndexBuilder::for_file`] and [`wants`](Self::wants) say which ranges to push, of Parquet often the
/// footer alone. Compressed files are recognised by their first bytes.
#[derive(Debug)]
pub struct IndexBuilder {
    format: FileFormat,
    /// Bytes of the file, if ranges of it are asked for, and how many have been pushed.
    file_bytes: Option<u64>,
    pushed: u64,
    state: State,
    fault: Option<Fault>,
}

/// The reason why a file cannot be indexed to its end.
#[derive(Clone, Debug)]
struct Fault {
    error: SourceError,
    /// It is of another kind than what is read, and not damaged.
    is_foreign: bool,
}

#[derive(Debug)]
enum State {
    /// The first bytes, before it is known whether they are compressed.
    Head(Vec<u8>, Builder),
    Plain(Builder),
    Gzip(Box<gzip::GzipUnpacker>, Builder),
    Frames(Box<FrameUnpacker>, Builder),
    /// All bytes of a file with a footer that is pushed in order.
    Kept(Vec<u8>, Box<dyn FooterIndexer>),
    Footer(Box<dyn FooterIndexer>),
    Failed,
}

/// Finds records in the bytes of an unpacked file.
#[derive(Debug)]
struct Builder {
    /// The first bytes of a text, until its encoding is known.
    head: Option<Vec<u8>>,
    scan: Box<dyn RecordScanner>,
}

impl Fault {
    fn damaged(error: SourceError) -> Self {
        Fault { error, is_foreign: false }
    }

    /// The fault of what was unpacked.
    fn within(self, packing: &str) -> Self {
        let error = SourceError(format!("{} (unpacked with {packing})", self.error));
        Fault { error, ..self }
    }

    fn foreign(what: String) -> Self {
        Fault { error: SourceError(what), is_foreign: true }
    }
}

impl Builder {
    fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(head) = &mut self.head {
            let room = ENCODING_BYTES - head.len();
            head.extend_from_slice(&bytes[..bytes.len().min(room)]);
            check_encoding(head).map_err(Fault::foreign)?;
            if head.len() == ENCODING_BYTES {
                self.head = None;
            }
        }
        self.scan.push(bytes).map_err(Fault::damaged)
    }
}

fn failed() -> SourceError {
    SourceError("indexing this file has failed before".into())
}

impl IndexBuilder {
    /// A builder with default limits, for a file that is pushed in order.
    ///
    /// # Errors
    /// [`SourceError`] for a format whose files are not indexed by reading them.
    pub fn new(format: &FileFormat) -> Result<Self, SourceError> {
        Self::with_limits(format, SourceLimits::default())
    }

    /// A builder that refuses larger records and files with more of them.
    pub fn with_limits(format: &FileFormat, limits: SourceLimits) -> Result<Self, SourceError> {
        let scanned = |scan, is_text: bool| {
            State::Head(Vec::new(), Builder { head: is_text.then(Vec::new), scan })
        };
        let state = match format.index_kind(limits) {
            IndexKind::Scan(scan) => scanned(scan, false),
            IndexKind::ScanText(scan) | IndexKind::ScanTable(_, scan) => scanned(scan, true),
            IndexKind::Footer(indexer) => State::Kept(Vec::new(), indexer),
            IndexKind::Packed => {
                let noun = format.definition().files.noun;
                return Err(SourceError(format!("a file of {noun} needs no index")));
            }
        };
        Ok(Self { format: format.clone(), file_bytes: None, pushed: 0, state, fault: None })
    }

    /// A builder for a file of `file_bytes`, which asks for what it needs; see
    /// [`wants`](Self::wants).
    pub fn for_file(format: &FileFormat, file_bytes: u64) -> Result<Self, SourceError> {
        let mut builder = Self::new(format)?;
        builder.file_bytes = Some(file_bytes);
        builder.state = match builder.state {
            State::Kept(_, mut indexer) => {
                indexer.begin(file_bytes);
                State::Footer(indexer)
            }
            state => state,
        };
        Ok(builder)
    }

    /// The part of the file to push next; none when all is known, or the file is pushed in order.
    pub fn wants(&self) -> Option<Range<u64>> {
        let file_bytes = self.file_bytes.filter(|_| self.fault.is_none())?;
        match &self.state {
            State::Footer(indexer) => indexer.wants(),
            State::Failed => None,
            _ if self.pushed >= file_bytes => None,
            _ => Some(self.pushed..file_bytes.min(self.pushed + READ_BYTES)),
        }
    }

    /// Takes the next bytes of the file, or those it [`wants`](Self::wants).
    ///
    /// # Errors
    /// [`SourceError`] naming record and byte offset; the builder is of no use after that.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        if self.fault.is_some() {
            return Err(failed());
        }
        self.pushed += bytes.len() as u64;
        self.take(bytes).map_err(|fault| self.fault.insert(fault).error.clone())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match &mut self.state {
            State::Head(head, _) => {
                head.extend_from_slice(bytes);
                if head.len() < HEAD_BYTES { Ok(()) } else { self.begin() }
            }
            State::Plain(builder) => builder.push(bytes),
            State::Gzip(unpacker, builder) => {
                let bad = |what| Fault::damaged(SourceError(what));
                let take = |part: &[u8]| builder.push(part).map_err(|fault| fault.within("gzip"));
                unpacker.push(bytes, bad, take)
            }
            State::Frames(unpacker, builder) => {
                let bad = |what| Fault::damaged(SourceError(what));
                let name = unpacker.name();
                unpacker
                    .push(bytes, bad, |part| builder.push(part).map_err(|fault| fault.within(name)))
            }
            State::Kept(kept, _) if kept.len() + bytes.len() > MAX_KEPT_BYTES => {
                Err(Fault::foreign(format!(
                    "it has more than {MAX_KEPT_BYTES} bytes, too many to be pushed in order"
                )))
            }
            State::Kept(kept, _) => {
                kept.extend_from_slice(bytes);
                Ok(())
            }
            State::Footer(indexer) => {
                let pushed = indexer.push(Bytes::copy_from_slice(bytes));
                pushed.map_err(|what| Fault::damaged(SourceError(what)))
            }
            State::Failed => Err(Fault::damaged(failed())),
        }
    }

    /// Decides by the first bytes whether the file is compressed, and takes them in.
    fn begin(&mut self) -> Result<(), Fault> {
        let State::Head(head, builder) = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(Fault::damaged(failed()));
        };
        if let Some(name) = frames::unread_packing(&head, &self.format) {
            return Err(Fault::foreign(format!(
                "it is compressed with {name}, and gzip, zstd, bzip2 and xz are read: compress it with one of them"
            )));
        }
        self.state = if gzip::is_gzip(&head, &self.format) {
            State::Gzip(Box::default(), builder)
        } else if let Some(kind) = FrameKind::recognise(&head, &self.format) {
            State::Frames(Box::new(FrameUnpacker::new(kind)), builder)
        } else {
            State::Plain(builder)
        };
        self.take(&head)
    }

    /// Records found whole so far; none of a file with a footer before all are known.
    pub fn records(&self) -> u32 {
        match &self.state {
            State::Plain(builder) | State::Gzip(_, builder) | State::Frames(_, builder) => {
                builder.scan.records()
            }
            State::Head(..) | State::Kept(..) | State::Footer(_) | State::Failed => 0,
        }
    }

    /// An index by which the [`records`](Self::records) found so far can be read, though the rest of the file
    /// has not been pushed. That of a file of which everything has been is [`finish`](Self::finish)'s.
    ///
    /// # Errors
    /// [`SourceError`] if none has been found.
    pub fn stop(self) -> Result<FileIndex, SourceError> {
        match self.state {
            _ if self.fault.is_some() => Err(failed()),
            State::Plain(builder) => Ok(builder.scan.stop()),
            State::Gzip(unpacker, builder) => Ok(builder.scan.stop().gzip(unpacker.stop())),
            State::Frames(unpacker, builder) => Ok(builder.scan.stop().frames(unpacker.stop())),
            State::Head(..) | State::Kept(..) | State::Footer(_) | State::Failed => Err(failed()),
        }
    }

    /// The index, now that all bytes have been pushed.
    ///
    /// # Errors
    /// [`SourceError`] if the file ends inside a record.
    pub fn finish(mut self) -> Result<FileIndex, SourceError> {
        self.end().map_err(|fault| fault.error)?;
        self.whole()
    }

    /// The index, now that all bytes have been pushed, or those to the first fault. In a damaged file it has the records
    /// before the damage, and the rest of the file as one more, which nobody can read.
    ///
    /// # Errors
    /// [`SourceError`] if the file is not damaged but of another kind.
    pub fn finish_or_rescue(mut self) -> Result<FileIndex, SourceError> {
        let Err(Fault { error, is_foreign }) = self.end() else {
            return match self.state {
                State::Kept(..) | State::Footer(_) => Ok(self.whole().unwrap_or_else(|error| {
                    FileIndex::new(0).lost(format!("all of the file is lost: {error}"))
                })),
                _ => self.whole(),
            };
        };
        if is_foreign { Err(error) } else { Ok(self.rescue(&error)) }
    }

    fn rescue(self, error: &SourceError) -> FileIndex {
        // A file that is cut is right up to its end.
        let is_cut = self.fault.is_none();
        let (index, unpacked) = match self.state {
            State::Plain(builder) => {
                let records = builder.scan.records();
                (builder.scan.stop().first(records, self.pushed), "")
            }
            State::Gzip(unpacker, builder) => {
                let sound = unpacker.sound_bytes(is_cut);
                let index = builder.scan.stop().gzip(unpacker.stop());
                (index.first(u32::MAX, sound), " of the unpacked file")
            }
            State::Frames(unpacker, builder) => {
                let sound = unpacker.sound_bytes(is_cut);
                let index = builder.scan.stop().frames(unpacker.stop());
                (index.first(u32::MAX, sound), " of the unpacked file")
            }
            _ => (FileIndex::new(0), ""),
        };
        let (record, at, packed) = (index.len(), index.file_bytes(), index.packed_end());
        let left = self.file_bytes.unwrap_or(self.pushed).saturating_sub(packed);
        // A packing that is read from its start has the records before the damage too.
        let most = if unpacked.is_empty() { "" } else { "at most " };
        index.lost(format!(
            "the file is damaged: record {record} at byte {at}{unpacked} and all after it are lost, {most}{left} \
             bytes of the file from byte {packed} on: {error}"
        ))
    }

    /// Checks that the file may end here.
    fn end(&mut self) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if let State::Head(..) = self.state {
            self.begin().map_err(|fault| self.fault.insert(fault).clone())?;
        }
        let bad = |what| Fault::damaged(SourceError(what));
        let builder = match &self.state {
            State::Plain(builder) => builder,
            State::Gzip(unpacker, builder) => {
                unpacker.check_end().map_err(bad)?;
                builder
            }
            State::Frames(unpacker, builder) => {
                unpacker.check_end().map_err(bad)?;
                builder
            }
            _ => return Ok(()),
        };
        builder.scan.check_end().map_err(Fault::damaged)
    }

    fn whole(self) -> Result<FileIndex, SourceError> {
        match self.state {
            State::Plain(builder) => builder.scan.finish(),
            State::Gzip(unpacker, builder) => Ok(builder.scan.finish()?.gzip(unpacker.stop())),
            State::Frames(unpacker, builder) => Ok(builder.scan.finish()?.frames(unpacker.stop())),
            State::Kept(kept, mut indexer) => {
                let kept = Bytes::from(kept);
                indexer.begin(kept.len() as u64);
                // The range lies in the file, and all of the file is kept.
                while let Some(range) = indexer.wants() {
                    let part = kept.slice(range.start as usize..range.end as usize);
                    indexer.push(part).map_err(SourceError)?;
                }
                indexer.finish().map_err(SourceError)
            }
            State::Footer(indexer) => indexer.finish().map_err(SourceError),
            State::Head(..) | State::Failed => Err(failed()),
        }
    }
}

/// First bytes of a text that tell its encoding.
const ENCODING_BYTES: usize = 4;

/// Checks the first bytes of a text, of which more may come.
///
/// Fails with the name of another encoding, and what to do.
fn check_encoding(head: &[u8]) -> Result<(), String> {
    let name = match head {
        [0, 0, 0xfe, 0xff, ..] | [0xff, 0xfe, 0, 0, ..] => "UTF-32",
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => "UTF-16",
        // Without a mark: every other byte of ASCII is zero.
        [0, 1..=255, 0, 1..=255] | [1..=255, 0, 1..=255, 0] => "UTF-16",
        _ => return Ok(()),
    };
    Err(format!(
        "the text is {name}, and UTF-8 is read: convert it (iconv -f {name} -t UTF-8 OLD > NEW)"
    ))
}

#[cfg(test)]
mod encoding_tests {
    use crate::{FileFormat, IndexBuilder};

    fn encoded(text: &str, unit: impl Fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(unit).collect()
    }

    #[test]
    fn other_encodings_are_refused_by_name_however_the_bytes_come() {
        let text = "value,note\n1,a\n";
        let marked = format!("\u{feff}{text}");
        let wide = |text: &str| text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        let files: [(Vec<u8>, &str); 6] = [
            (encoded(&marked, u16::to_le_bytes), "UTF-16"),
            (encoded(&marked, u16::to_be_bytes), "UTF-16"),
            (encoded(text, u16::to_le_bytes), "UTF-16"),
            (encoded(text, u16::to_be_bytes), "UTF-16"),
            (wide(&marked), "UTF-32"),
            (encoded("\u{feff}a", u16::to_le_bytes), "UTF-16"),
        ];
        for (file, name) in files {
            for format in ["csv", "jsonl"].map(|name| FileFormat::with_defaults(name).unwrap()) {
                for size in [1, 3, 1000] {
                    let mut builder = IndexBuilder::new(&format).unwrap();
                    let pushed = file.chunks(size).try_for_each(|piece| builder.push(piece));
                    let error = pushed.err().or_else(|| builder.finish().err()).unwrap();
                    let error = error.to_string();
                    assert!(error.contains(&format!("the text is {name}")), "{file:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_mark_of_utf_8_is_no_other_encoding() {
        for text in ["\u{feff}value\n1\n", "value\n1\n", "a", "", "é\n1\n"] {
            let mut builder =
                IndexBuilder::new(&FileFormat::with_defaults("csv").unwrap()).unwrap();
            text.bytes().try_for_each(|byte| builder.push(&[byte])).unwrap();
            builder.finish().unwrap();
        }
    }
}

//! Members of a tar file, from its bytes in pieces of any size. Contents are passed over, and no
//! member touches a file system: its name is only text to compare.
//!
//! Source: POSIX `pax`, "ustar interchange format" and "pax header block"; GNU tar's long names.
//! Fields of headers are read by the `tar` crate. Its own reader pulls, and allocates the size that an
//! extension header claims; this one is pushed, and holds at most [`MAX_EXTENSION_BYTES`].

use std::{mem, ops::Range};
use tar::{Header, PaxExtensions};

pub(crate) const BLOCK_BYTES: usize = 512;
/// Longest extension header: a name has at most 4 KiB on any system that could have written it.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;
/// Most zeros after the end mark: writers pad to a block of a tape, not to a disk full.
const MAX_PADDING_BYTES: u64 = 16 << 20;
/// The place of a header's checksum, which counts as spaces.
const CHECKSUM: Range<usize> = 148..156;

/// One member.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a [u8],
    /// The start of its first header, those that extend it included.
    pub(crate) start: u64,
    pub(crate) content: Range<u64>,
    /// The start of the next member's headers.
    pub(crate) end: u64,
}

/// Reads headers, and hands out every regular file.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Bytes taken.
    at: u64,
    /// Bytes to pass over.
    skip: u64,
    block: Vec<u8>,
    /// The extension header being read: what it is and how long.
    extension: Option<(Extension, usize)>,
    next: Next,
    ended: bool,
    /// Bytes taken after the end mark.
    padding: u64,
}

#[derive(Clone, Copy, Debug)]
enum Extension {
    Pax,
    LongName,
}

/// The extension headers of the next member.
#[derive(Debug, Default)]
struct Next {
    start: Option<u64>,
    name: Option<Vec<u8>>,
    bytes: Option<u64>,
}

impl Members {
    /// Takes the next bytes; `found` gets each regular file among them once its headers are read.
    ///
    /// # Errors
    /// The fault, and its byte.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        found: &mut dyn FnMut(Member<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.ended {
                return self.after_end(bytes);
            }
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= skipped as u64;
                self.at += skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            let wanted = self.extension.map_or(BLOCK_BYTES, |(_, bytes)| bytes);
            let taken = (wanted - self.block.len()).min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            self.block.extend_from_slice(head);
            self.at += taken as u64;
            bytes = rest;
            if self.block.len() == wanted {
                let block = mem::take(&mut self.block);
                match self.extension.take() {
                    Some((kind, _)) => self.extend(kind, &block)?,
                    None => self.header(&block, found)?,
                }
                self.block = block;
                self.block.clear();
            }
        }
        Ok(())
    }

    /// Other readers stop at the end mark; what somebody appended after it would be lost in silence.
    fn after_end(&mut self, bytes: &[u8]) -> Result<(), String> {
        match bytes.iter().position(|byte| *byte != 0) {
            Some(first) => Err(format!(
                "there is more after the end mark, at byte {}: join archives with `tar --concatenate`",
                self.at + first as u64
            )),
            None => {
                self.at += bytes.len() as u64;
                self.padding += bytes.len() as u64;
                match self.padding > MAX_PADDING_BYTES {
                    true => Err(format!(
                        "more than {MAX_PADDING_BYTES} zeros follow the end mark: cut them off"
                    )),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether the file may end here: after its end mark, or where a header could start.
    pub(crate) fn is_whole(&self) -> bool {
        self.ended || (self.skip == 0 && self.block.is_empty() && self.next.start.is_none())
    }

    /// Bytes taken so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn header(
        &mut self,
        block: &[u8],
        found: &mut dyn FnMut(Member<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = self.at - BLOCK_BYTES as u64;
        let bad = |what: &str| format!("the header at byte {start} {what}");
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return match self.next.start {
                Some(_) => Err(bad("ends the file, but an extension before it has no member")),
                None => Ok(()),
            };
        }
        let header = Header::from_byte_slice(block);
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let spaces = CHECKSUM.len() as u32 * u32::from(b' ');
        let actual = sum(&block[..CHECKSUM.start]) + spaces + sum(&block[CHECKSUM.end..]);
        if header.cksum().ok() != Some(actual) {
            return Err(bad("has no valid checksum; is this a tar file, and not compressed?"));
        }
        let kind = header.entry_type();
        let own_bytes = header.entry_size().map_err(|_| bad("has no valid size"))?;
        let known = match kind {
            _ if kind.is_pax_local_extensions() => Some(Extension::Pax),
            _ if kind.is_gnu_longname() => Some(Extension::LongName),
            _ => None,
        };
        if let Some(known) = known {
            if own_bytes > MAX_EXTENSION_BYTES {
                return Err(bad(&format!(
                    "extends the next by {own_bytes} bytes; the limit is {MAX_EXTENSION_BYTES}"
                )));
            }
            self.next.start.get_or_insert(start);
            self.extension = (own_bytes > 0).then_some((known, own_bytes as usize));
            return Ok(());
        }
        if kind.is_gnu_sparse() {
            return Err(bad("is of a sparse file; write the archive without --sparse"));
        }
        // Both describe members to come, and neither what is wanted of them.
        let passing = kind.is_pax_global_extensions() || kind.is_gnu_longlink();
        let next = if passing { Next::default() } else { mem::take(&mut self.next) };
        // Links, directories and devices have no content, even if their size says otherwise.
        let is_empty = matches!(kind.as_byte(), b'1'..=b'6');
        let bytes = if is_empty { 0 } else { next.bytes.unwrap_or(own_bytes) };
        let padded = bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        let end = padded.and_then(|padded| padded.checked_add(self.at));
        let end = end.ok_or_else(|| bad(&format!("gives a size of {bytes} bytes")))?;
        self.skip = end - self.at;
        if !kind.is_file() && !kind.is_contiguous() {
            return Ok(());
        }
        let name = next.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let (at, start) = (self.at, next.start.unwrap_or(start));
        found(Member { name: &name, start, content: at..at + bytes, end })
    }

    fn extend(&mut self, kind: Extension, body: &[u8]) -> Result<(), String> {
        let padding = body.len().next_multiple_of(BLOCK_BYTES) - body.len();
        self.skip = padding as u64;
        match kind {
            Extension::LongName => {
                let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
                self.next.name = Some(body[..end].to_vec());
            }
            Extension::Pax => {
                let bad =
                    |what: &str| format!("the extension that ends at byte {} {what}", self.at);
                for record in PaxExtensions::new(body) {
                    let record = record.map_err(|_| bad("is not made of `length key=value`"))?;
                    match record.key_bytes() {
                        b"path" => self.next.name = Some(record.value_bytes().to_vec()),
                        b"size" => {
                            let text = str::from_utf8(record.value_bytes()).ok();
                            let size = text.and_then(|text| text.parse().ok());
                            self.next.bytes = Some(size.ok_or_else(|| bad("has no valid size"))?);
                        }
                        b"GNU.sparse.major" | b"GNU.sparse.map" => {
                            return Err(bad("is of a sparse file; write it without --sparse"));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

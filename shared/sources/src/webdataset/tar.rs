//! Members of a tar file, from its bytes in pieces of any size. Contents are passed over, and no
//! member touches a file system: its name is only text to compare.
//!
//! Source: POSIX `pax`, "ustar interchange format" and "pax header block"; GNU tar's long names.
//! Fields of headers are read by the `tar` crate. Its own reader pulls, and allocates the size that an
//! extension header claims; this one is pushed, and holds at most [`MAX_EXTENSION_BYTES`].

use std::{mem, ops::Range};
use tar::{EntryType, Header};

pub(crate) const BLOCK_BYTES: usize = 512;
/// Longest extension header: a name has at most 4 KiB on any system that could have written it.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;
/// Most zeros after the end mark: writers pad to a block of a tape, not to a disk full.
const MAX_PADDING_BYTES: u64 = 16 << 20;
/// The place of a header's kind.
const KIND: usize = 156;
/// The place of a header's checksum, which counts as spaces.
const CHECKSUM: Range<usize> = 148..156;

/// A regular file, or a link.
#[derive(Debug)]
pub(crate) struct TarMember<'a> {
    pub(crate) name: &'a [u8],
    /// The start of its first header, those that extend it included.
    pub(crate) start: u64,
    /// Empty if it is a link.
    pub(crate) content: Range<u64>,
    pub(crate) link: Option<TarLink<'a>>,
    /// The start of the next member's headers.
    pub(crate) end: u64,
}

/// A link to another member or path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TarLink<'a> {
    pub(crate) target: &'a [u8],
    /// The target is the name of an earlier member, and not a path from the link's folder.
    pub(crate) is_hard: bool,
}

/// Reads headers, and hands out every regular file and link.
#[derive(Debug, Default)]
pub(crate) struct TarReader {
    /// Bytes taken.
    at: u64,
    /// Bytes to pass over.
    skip: u64,
    block: Vec<u8>,
    /// The extension header being read: what it is and how long.
    extension: Option<(Extension, usize)>,
    next: Next,
    ended: bool,
    /// Zeros of the end mark and after it.
    padding: u64,
}

#[derive(Clone, Copy, Debug)]
enum Extension {
    Pax,
    /// It extends all members that follow.
    Global,
    LongName,
    LongTarget,
}

/// The extension headers of the next member.
#[derive(Debug, Default)]
struct Next {
    start: Option<u64>,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    bytes: Option<u64>,
}

impl TarReader {
    /// Takes the next bytes; `found` gets each file and link among them once its headers are read.
    ///
    /// # Errors
    /// The fault, and its byte.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        found: &mut dyn FnMut(TarMember<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
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

    /// Whether the end mark has come, and nothing but zeros since.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended && self.block.iter().all(|byte| *byte == 0)
    }

    /// Bytes taken so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn header(
        &mut self,
        block: &[u8],
        found: &mut dyn FnMut(TarMember<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = self.at - BLOCK_BYTES as u64;
        let bad = |what: &str| format!("the header at byte {start} {what}");
        if block.iter().all(|byte| *byte == 0) {
            return self.zeros().map_err(bad);
        }
        let header = Header::from_byte_slice(block);
        if !header.cksum().is_ok_and(|sum| checksums(block).contains(&i64::from(sum))) {
            let after =
                format!("there is something after the end mark, at byte {start}: cut it off");
            let other = || bad("has no valid checksum; is this a tar file, and not compressed?");
            return Err(if self.ended { after } else { other() });
        }
        // Another archive has been joined to the one before, as by `cat`.
        (self.ended, self.padding) = (false, 0);
        let kind = block[KIND];
        let own_bytes = header.entry_size().map_err(|_| bad("has no valid size"))?;
        let known = match kind {
            // The second is that of Solaris.
            b'x' | b'X' => Some(Extension::Pax),
            b'g' => Some(Extension::Global),
            b'L' => Some(Extension::LongName),
            b'K' => Some(Extension::LongTarget),
            _ => None,
        };
        if let Some(known) = known {
            if own_bytes > MAX_EXTENSION_BYTES {
                return Err(bad(&format!(
                    "extends the next by {own_bytes} bytes; the limit is {MAX_EXTENSION_BYTES}"
                )));
            }
            if !matches!(known, Extension::Global) {
                self.next.start.get_or_insert(start);
            }
            self.extension = (own_bytes > 0).then_some((known, own_bytes as usize));
            return Ok(());
        }
        match kind {
            b'S' => return Err(bad("is of a sparse file; write the archive without --sparse")),
            b'M' => return Err(bad("goes on from another volume; write the archive as one file")),
            _ => {}
        }
        let next = mem::take(&mut self.next);
        let name = next.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let is_old_folder = kind == 0 && name.ends_with(b"/");
        // Links, directories and devices have no content, even if their size says otherwise.
        let is_empty = matches!(kind, b'1'..=b'6') || is_old_folder;
        let bytes = if is_empty { 0 } else { next.bytes.unwrap_or(own_bytes) };
        let padded = bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        let end = padded.and_then(|padded| padded.checked_add(self.at));
        let end = end.ok_or_else(|| bad(&format!("gives a size of {bytes} bytes")))?;
        self.skip = end - self.at;
        let target = next
            .target
            .unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        let link = match kind {
            b'1' | b'2' => Some(TarLink { target: &target, is_hard: kind == b'1' }),
            // Directories and devices; a list of names, a label, and the long names of old archives.
            b'3'..=b'6' | b'D' | b'V' | b'N' => return Ok(()),
            _ if is_old_folder => return Ok(()),
            // Those of other kinds are read as files, as POSIX says.
            _ => None,
        };
        let (at, start) = (self.at, next.start.unwrap_or(start));
        found(TarMember { name: &name, start, content: at..at + bytes, link, end })
    }

    /// Takes a block of the end mark, or of the zeros after it.
    fn zeros(&mut self) -> Result<(), &'static str> {
        self.ended = true;
        self.padding += BLOCK_BYTES as u64;
        match self.next.start {
            Some(_) => Err("ends the file, but an extension before it has no member"),
            None if self.padding > MAX_PADDING_BYTES => {
                Err("follows more than 16 MiB of zeros after the end mark: cut them off")
            }
            None => Ok(()),
        }
    }

    fn extend(&mut self, kind: Extension, body: &[u8]) -> Result<(), String> {
        let padding = body.len().next_multiple_of(BLOCK_BYTES) - body.len();
        self.skip = padding as u64;
        let text =
            || body[..body.iter().position(|byte| *byte == 0).unwrap_or(body.len())].to_vec();
        match kind {
            Extension::LongName => self.next.name = Some(text()),
            Extension::LongTarget => self.next.target = Some(text()),
            Extension::Pax | Extension::Global => return self.extend_by(kind, body),
        }
        Ok(())
    }

    fn extend_by(&mut self, kind: Extension, body: &[u8]) -> Result<(), String> {
        let bad = |what: &str| format!("the extension that ends at byte {} {what}", self.at);
        let mut rest = body;
        while !rest.is_empty() {
            let record = pax_record(&mut rest);
            let (key, value) = record.ok_or_else(|| bad("is not made of `length key=value`"))?;
            if key.starts_with(b"GNU.sparse.") {
                return Err(bad("is of a sparse file; write it without --sparse"));
            }
            let is_own = matches!(kind, Extension::Pax);
            match key {
                b"path" | b"linkpath" | b"size" if !is_own => {
                    let key = String::from_utf8_lossy(key);
                    return Err(bad(&format!("gives all members one `{key}`")));
                }
                b"path" => self.next.name = Some(value.to_vec()),
                b"linkpath" => self.next.target = Some(value.to_vec()),
                b"size" => {
                    let text = str::from_utf8(value).ok();
                    let size = text.and_then(|text| text.parse().ok());
                    self.next.bytes = Some(size.ok_or_else(|| bad("has no valid size"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Takes `length key=value` and its line end off the start of `rest`. The value may have line ends of its own.
fn pax_record<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let (record, after) = rest.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    *rest = after;
    Some((&record[..equals], &record[equals + 1..]))
}

/// The sums of a header's bytes, without and, as old writers have it, with signs; that of its checksum are spaces.
fn checksums(block: &[u8]) -> [i64; 2] {
    let bytes = block.iter().enumerate();
    let bytes = bytes.map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
    bytes.fold([0; 2], |[sum, signed], byte| {
        [sum + i64::from(byte), signed + i64::from(byte.cast_signed())]
    })
}

/// The header of a link as that of a file of `bytes`.
///
/// # Errors
/// If `block` is no header.
pub(crate) fn as_file(block: &[u8], bytes: u64) -> Option<Header> {
    let mut header =
        (block.len() == BLOCK_BYTES).then(|| Header::from_byte_slice(block).clone())?;
    header.set_entry_type(EntryType::Regular);
    header.set_size(bytes);
    header.set_cksum();
    Some(header)
}

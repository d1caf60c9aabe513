//! The places of a file's arrays: one of an `.npy`, several of an `.npz`, which is a zip archive.
//!
//! Source: PKWARE's APPNOTE 6.3, without encryption and several volumes. Rows of an array that is stored as it is and in
//! the order of C are read by themselves; of another one all is read, for all rows.

use super::array::{MAX_HEADER_BYTES, NpyArray, is_npy};
use crate::{
    Feature, FileIndex, RecordReaderInput, SourceLimits, lengths::RecordLengths,
    records::FooterIndexer, varint,
};
use bytes::Bytes;
use miniz_oxide::inflate;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most bytes of a stored layout.
pub(crate) const MAX_STORED_BYTES: usize = 4 << 20;
/// Most bytes of an array that is read as a whole.
const MAX_WHOLE_BYTES: u64 = 512 << 20;
/// Most bytes of the list of an archive's members.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Bytes at the end of an archive in which its last record begins: with the longest comment, and what zip64 puts before it.
const TAIL_BYTES: u64 = (64 << 10) + 22 + 20 + 56;
/// Bytes that are read at a member's start: its two headers, most often.
const HEAD_BYTES: u64 = 1 << 10;
/// Methods of compression.
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// An array in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    array: NpyArray,
    /// Its bytes in the file.
    place: Range<u64>,
    is_deflated: bool,
    /// The CRC-32 of the unpacked bytes; none of an `.npy`.
    crc: Option<u32>,
}

/// The arrays of a file that are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NpyLayout {
    rows: u32,
    /// In the order of their keys.
    members: Vec<(String, Member)>,
}

impl Member {
    /// The bytes that are read for some rows.
    fn range(&self, rows: &Range<u32>) -> Range<u64> {
        if !self.has_rows() {
            return self.place.clone();
        }
        let at = |row: u32| {
            let start = self.place.start + self.array.header as u64;
            start + u64::from(row) * self.array.row_bytes()
        };
        at(rows.start)..at(rows.end)
    }

    fn has_rows(&self) -> bool {
        !self.is_deflated && self.array.has_rows()
    }

    /// The items from the first of `rows` on, or all, from the bytes that [`range`](Self::range) names.
    fn items(&self, stored: &[u8]) -> Result<Vec<u8>, String> {
        if self.has_rows() {
            return Ok(stored.to_vec());
        }
        let bytes = self.array.header + self.array.bytes().unwrap_or_default() as usize;
        let mut all = if self.is_deflated {
            inflate::decompress_to_vec_with_limit(stored, bytes)
                .map_err(|_| "has damaged compressed data".to_owned())?
        } else {
            stored.to_vec()
        };
        if self.crc.is_some_and(|crc| crc != crc32fast::hash(&all)) || all.len() != bytes {
            return Err("does not match its checksum".into());
        }
        Ok(all.split_off(self.array.header))
    }
}

impl NpyLayout {
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// The arrays of a source's features, once they are what the features are declared as.
    fn wanted<'a>(
        &'a self,
        source: RecordReaderInput<'a>,
    ) -> Result<Vec<(&'a Feature, &'a Member)>, String> {
        let find = |feature: &'a Feature| {
            let found = self.members.iter().find(|(key, _)| *key == feature.key);
            let (key, member) = found.ok_or("the index is not that of these features")?;
            let shape = member.array.shape.get(1..).unwrap_or_default();
            member
                .array
                .check(feature, shape)
                .map_err(|what| format!("a row of array `{key}` {what}"))?;
            Ok((feature, member))
        };
        source.features.values().map(find).collect()
    }

    pub(crate) fn stored_ranges(
        &self,
        rows: &Range<u32>,
        source: RecordReaderInput<'_>,
    ) -> Result<Vec<Range<u64>>, String> {
        let wanted = self.wanted(source)?;
        Ok(wanted.iter().map(|(_, member)| member.range(rows)).collect())
    }

    /// All rows with their bytes, if reading one takes reading all.
    pub(crate) fn whole(&self, source: RecordReaderInput<'_>) -> Option<u64> {
        let wanted = self.wanted(source).ok()?;
        let is_whole = wanted.iter().any(|(_, member)| !member.has_rows());
        is_whole.then(|| wanted.iter().filter_map(|(_, member)| member.array.bytes()).sum())
    }

    /// About how many bytes a row takes in memory.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.members.iter().map(|(_, member)| member.array.row_bytes()).fold(0, u64::saturating_add)
    }

    /// The records of some rows, end to end, in the form of Parquet's, and their lengths; `read` gives bytes of the file.
    pub(crate) fn open(
        &self,
        rows: Range<u32>,
        source: RecordReaderInput<'_>,
        read: impl Fn(&Range<u64>) -> Option<Bytes>,
    ) -> Result<(RecordLengths, Vec<u8>), String> {
        let mut arrays = Vec::new();
        for (feature, member) in self.wanted(source)? {
            let stored = read(&member.range(&rows)).ok_or("the parts are not those of the file")?;
            let items = member.items(&stored);
            let items = items.map_err(|what| format!("array `{}` {what}", feature.key))?;
            arrays.push((feature, member, items));
        }
        let (mut lengths, mut out) = (RecordLengths::new(rows.start, 0), Vec::new());
        for row in rows.clone() {
            let before = out.len();
            for (feature, member, items) in &arrays {
                let first = if member.has_rows() { rows.start } else { 0 };
                let at = out.len();
                out.extend([0; 4]);
                let (first, row) = (u64::from(first), u64::from(row));
                let put = member.array.put_row(items, first, row, feature.dtype, &mut out);
                let mut flag = 0;
                if let Err(what) = put {
                    out.truncate(at + 4);
                    out.extend(format!("array `{}` {what}", feature.key).bytes());
                    flag = crate::parquet::reader::FAULT;
                }
                let length = (out.len() - at - 4) as u32 | flag;
                out[at..at + 4].copy_from_slice(&length.to_le_bytes());
            }
            lengths.push((out.len() - before) as u32);
        }
        Ok((lengths, out))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.members.len() * size_of::<(String, Member)>()
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        // Numbers and texts are written without fail.
        let json = serde_json::to_vec(self).unwrap_or_default();
        varint::put(out, json.len() as u64);
        out.extend(json);
    }

    /// Takes the stored form off the start of `rest`.
    pub(crate) fn decode(rest: &mut &[u8], limits: SourceLimits) -> Result<Self, String> {
        let bytes = usize::try_from(varint::take(rest)?).unwrap_or(usize::MAX);
        let layout: NpyLayout = serde_json::from_slice(varint::bytes(rest, bytes)?)
            .map_err(|_| "it has no valid layout".to_owned())?;
        layout.check(limits)?;
        Ok(layout)
    }

    /// Checks what later computations rely on.
    fn check(&self, limits: SourceLimits) -> Result<(), String> {
        let most = limits.records;
        if self.rows > most {
            return Err(format!("the limit is {most} records a file; use more files"));
        }
        let mut row = 0;
        for (key, Member { array, place, is_deflated, .. }) in &self.members {
            let bytes = array.bytes().and_then(|bytes| bytes.checked_add(array.header as u64));
            let bytes = bytes
                .filter(|bytes| *is_deflated || place.end.checked_sub(place.start) == Some(*bytes));
            let bytes = bytes.ok_or_else(|| format!("array `{key}` is cut short"))?;
            let is_whole = *is_deflated || !array.has_rows();
            if is_whole && bytes > MAX_WHOLE_BYTES {
                return Err(format!(
                    "array `{key}` has {bytes} bytes, and the limit is {MAX_WHOLE_BYTES} where all is read for each row: write it \
                     uncompressed (np.savez) and in the order of C (np.ascontiguousarray)"
                ));
            }
            match array.shape.first() {
                Some(rows) if *rows == u64::from(self.rows) => {}
                rows => {
                    let (rows, first) = (rows.copied().unwrap_or(0), &self.members[0].0);
                    return Err(format!(
                        "array `{key}` has {rows} rows, and `{first}` {}: arrays that are read together have equal first axes",
                        self.rows
                    ));
                }
            }
            row = array.row_bytes().saturating_add(row);
        }
        let most = u64::from(limits.record_bytes);
        if row > most / 8 {
            return Err(format!("a row has {row} bytes; the limit is {}", most / 8));
        }
        Ok(())
    }
}

/// Finds the arrays of a file, part by part.
#[derive(Debug)]
pub(crate) struct NpyIndexer {
    keys: Vec<String>,
    limits: SourceLimits,
    /// The parts that have been read, by their first byte.
    parts: Vec<(u64, Bytes)>,
    file_bytes: u64,
    /// The outcome so far.
    state: Result<NpyLayout, Lack>,
}

/// The reason why there is no layout.
#[derive(Debug)]
enum Lack {
    Part(Range<u64>),
    Bad(String),
}

impl From<String> for Lack {
    fn from(what: String) -> Self {
        Lack::Bad(what)
    }
}

impl From<&str> for Lack {
    fn from(what: &str) -> Self {
        Lack::Bad(what.to_owned())
    }
}

impl FooterIndexer for NpyIndexer {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
        self.state = Err(Lack::Part(0..HEAD_BYTES.min(file_bytes)));
    }

    fn wants(&self) -> Option<Range<u64>> {
        match &self.state {
            Err(Lack::Part(range)) => Some(range.clone()),
            _ => None,
        }
    }

    fn push(&mut self, bytes: Bytes) -> Result<(), String> {
        if let Some(range) = self.wants() {
            self.parts.push((range.start, bytes));
            self.state = self.layout();
        }
        match &self.state {
            Err(Lack::Bad(what)) => Err(what.clone()),
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<FileIndex, String> {
        match self.state {
            Ok(layout) => Ok(FileIndex::npy(layout)),
            Err(Lack::Bad(what)) => Err(what),
            Err(Lack::Part(_)) => Err("the file ends before its arrays: it is cut short".into()),
        }
    }
}

impl NpyIndexer {
    pub(super) fn new(keys: Vec<String>, limits: SourceLimits) -> Self {
        let state = Err(Lack::Part(0..0));
        NpyIndexer { keys, limits, parts: Vec::new(), file_bytes: 0, state }
    }

    /// Bytes of the file, if they have been read.
    fn get(&self, range: Range<u64>) -> Result<&[u8], Lack> {
        if range.end > self.file_bytes || range.start > range.end {
            return Err("it ends before what it says it has: it is cut short".into());
        }
        let holds = |(start, part): &&(u64, Bytes)| {
            *start <= range.start && range.end <= start + part.len() as u64
        };
        match self.parts.iter().find(holds) {
            // In range of a part that is in memory.
            Some((start, part)) => {
                Ok(&part[(range.start - start) as usize..(range.end - start) as usize])
            }
            None => Err(Lack::Part(range)),
        }
    }

    fn layout(&self) -> Result<NpyLayout, Lack> {
        let head = self.get(0..HEAD_BYTES.min(self.file_bytes))?;
        let members = if is_npy(head) {
            let place = 0..self.file_bytes;
            let array = self.array(&place, STORED)?;
            let member = Member { array, place, is_deflated: false, crc: None };
            if self.keys.len() > 1 {
                let keys = self.keys.join("`, `");
                return Err(
                    format!("an .npy file has one array, and the pipeline reads `{keys}`").into()
                );
            }
            self.keys.iter().map(|key| (key.clone(), member.clone())).collect()
        } else if head.starts_with(b"PK") {
            self.archive()?
        } else if head.starts_with(&[0x80]) {
            return Err("it holds Python objects (pickled), which are not read".into());
        } else {
            return Err("it is neither an .npy nor an .npz file".into());
        };
        let rows = members.first().and_then(|(_, member)| member.array.shape.first().copied());
        let rows = u32::try_from(rows.unwrap_or(0)).map_err(|_| "it has too many rows")?;
        let layout = NpyLayout { rows, members };
        layout.check(self.limits)?;
        Ok(layout)
    }

    /// The header of the array at the start of `place`.
    fn array(&self, place: &Range<u64>, method: u16) -> Result<NpyArray, Lack> {
        let mut bytes = HEAD_BYTES;
        loop {
            let head = self.get(place.start..place.end.min(place.start + bytes))?;
            let mut unpacked = vec![0; MAX_HEADER_BYTES + 16];
            let head = if method == DEFLATED {
                let mut state = inflate::core::DecompressorOxide::new();
                let flags = inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT
                    | inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
                let (_, _, made) =
                    inflate::core::decompress(&mut state, head, &mut unpacked, 0, flags);
                &unpacked[..made]
            } else {
                head
            };
            if let Some(array) = NpyArray::parse(head)? {
                return Ok(array);
            }
            if place.start + bytes >= place.end || bytes > 2 * MAX_HEADER_BYTES as u64 {
                return Err("the header of an array is cut short".into());
            }
            bytes *= 16;
        }
    }

    /// The members of an archive that are read.
    fn archive(&self) -> Result<Vec<(String, Member)>, Lack> {
        let list = self.get(self.list()?)?;
        let mut names = Vec::new();
        let mut members = Vec::new();
        let mut rest = list;
        while let Some((head, after)) = rest.split_first_chunk::<46>() {
            if !head.starts_with(b"PK\x01\x02") {
                break;
            }
            let short = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
            let cut = "the list of its members is damaged";
            let (name, after) = after.split_at_checked(short(28)).ok_or(cut)?;
            let (extra, after) = after.split_at_checked(short(30)).ok_or(cut)?;
            rest = after.get(short(32)..).ok_or(cut)?;
            let name = String::from_utf8_lossy(name);
            let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
            if self.keys.contains(&name) {
                let member = self.member(head, extra);
                members.push((name.clone(), member.map_err(|lack| name_array(&name, lack))?));
            }
            names.push(name);
        }
        members.sort_by(|(left, _), (right, _)| left.cmp(right));
        if let Some(key) = self.keys.iter().find(|key| !names.contains(key)) {
            names.truncate(8);
            let names = names.join("`, `").replace(char::is_control, " ");
            return Err(format!("it has no array `{key}`; it has `{names}`").into());
        }
        if members.len() != self.keys.len() {
            return Err("it has two arrays of one name".into());
        }
        Ok(members)
    }

    /// The place of the list of an archive's members.
    fn list(&self) -> Result<Range<u64>, Lack> {
        let start = self.file_bytes.saturating_sub(TAIL_BYTES);
        let tail = self.get(start..self.file_bytes)?;
        let end = tail.windows(4).rposition(|bytes| bytes == b"PK\x05\x06");
        let end = end.ok_or("it has no end of an archive: it is cut short, or no .npz file")?;
        if (end + 22) as u64 + long(tail, end + 20, 2)? > tail.len() as u64 {
            return Err("its end is cut short".into());
        }
        let (mut bytes, mut at) = (long(tail, end + 12, 4)?, long(tail, end + 16, 4)?);
        if at == u64::from(u32::MAX) || bytes == u64::from(u32::MAX) {
            let zip64 = tail[..end].windows(4).rposition(|bytes| bytes == b"PK\x06\x06");
            let zip64 = zip64.ok_or("it has no end of a large archive")?;
            (bytes, at) = (long(tail, zip64 + 40, 8)?, long(tail, zip64 + 48, 8)?);
        }
        if bytes > MAX_LIST_BYTES {
            return Err(format!(
                "the list of its members has {bytes} bytes; the limit is {MAX_LIST_BYTES}"
            )
            .into());
        }
        Ok(at..at.saturating_add(bytes))
    }

    /// The array of a member, from its entry in the list.
    fn member(&self, entry: &[u8; 46], extra: &[u8]) -> Result<Member, Lack> {
        let short = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let (mut packed, mut unpacked, mut at) =
            (long(entry, 20, 4)?, long(entry, 24, 4)?, long(entry, 42, 4)?);
        let mut wide = zip64_extra(extra);
        for number in [&mut unpacked, &mut packed, &mut at] {
            if *number == u64::from(u32::MAX) {
                *number = long(wide, 0, 8)?;
                wide = &wide[8..];
            }
        }
        let method = short(10);
        if short(8) & 1 != 0 {
            return Err("it is encrypted".into());
        }
        if method != STORED && method != DEFLATED {
            return Err(format!("it is compressed by method {method}, and deflate is read").into());
        }
        let local = self.get(at..at.saturating_add(HEAD_BYTES).min(self.file_bytes))?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err("its place is damaged".into());
        }
        let start = at + 30 + long(local, 26, 2)? + long(local, 28, 2)?;
        let place = start..start.saturating_add(packed);
        let array = self.array(&place, method)?;
        let all = array.bytes().and_then(|bytes| bytes.checked_add(array.header as u64));
        if all != Some(unpacked) {
            return Err("its size is not that of its items".into());
        }
        let crc = Some(long(entry, 16, 4)? as u32);
        Ok(Member { array, place, is_deflated: method == DEFLATED, crc })
    }
}

fn name_array(name: &str, lack: Lack) -> Lack {
    match lack {
        Lack::Bad(what) => Lack::Bad(format!("array `{name}`: {what}")),
        lack => lack,
    }
}

/// A number of `bytes` bytes, little endian.
fn long(bytes: &[u8], at: usize, n: usize) -> Result<u64, Lack> {
    let found = bytes.get(at..at + n).ok_or("a record of the archive is cut short")?;
    Ok(found.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

/// The numbers that take eight bytes, of a member's extra fields.
fn zip64_extra(mut extra: &[u8]) -> &[u8] {
    while let [a, b, c, d, rest @ ..] = extra {
        let bytes = usize::from(u16::from_le_bytes([*c, *d])).min(rest.len());
        if u16::from_le_bytes([*a, *b]) == 1 {
            return &rest[..bytes];
        }
        extra = &rest[bytes..];
    }
    &[]
}

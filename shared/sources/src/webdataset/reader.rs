//! WebDataset tar files: consecutive members that share a name up to its first dot are one record.
//!
//! Source: the WebDataset format ("The WebDataset Format", T. Breuel). Members without such a name,
//! directories and devices are passed over, as its reader does. Where it takes keys as they are,
//! these are compared without regard to ASCII case; where it passes over links, these are followed.

use super::{
    links::TarLinkFinder,
    tar::{TarMember, TarReader},
};
use crate::{
    Feature, FeatureDType, FeatureMap, FileIndex, ReadRecord, RecordScanner, SourceError,
    SourceLimits, npy, words,
};
use gristmill_kernel::{CellStorage, FieldCell};
use std::ops::Range;

/// The name of a record and the key of one of its parts: before and after the first dot of the last
/// component. None if either is empty, or if the member describes the archive.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if is_about_the_archive(name) {
        return None;
    }
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].iter().position(|byte| *byte == b'.')?;
    (dot > base && dot + 1 < name.len()).then(|| (&name[..dot], &name[dot + 1..]))
}

/// Whether a name is `__meta__.json`, or in a folder such as `__meta__/`, which WebDataset passes over.
fn is_about_the_archive(name: &[u8]) -> bool {
    let folder = name.iter().position(|byte| *byte == b'/').map(|slash| &name[..slash]);
    let is_meta = |name: &[u8]| name.len() > 3 && name.starts_with(b"__") && name.ends_with(b"__");
    folder.is_some_and(is_meta) || name.starts_with(b"__meta__.")
}

/// Builds the index of a file from its bytes, pushed in order in pieces of any size.
///
/// Records lie end to end: one begins with the first header of its first part and ends where the
/// next begins, so that one ranged read has many of them whole.
#[derive(Debug)]
pub(crate) struct WebDatasetScanner {
    members: TarReader,
    records: Records,
}

#[derive(Debug)]
struct Records {
    limits: SourceLimits,
    index: FileIndex,
    /// Name and end of the current record.
    open: Option<(Vec<u8>, u64)>,
    finder: TarLinkFinder,
}

impl WebDatasetScanner {
    pub(crate) fn new(limits: SourceLimits) -> Self {
        let records = Records {
            limits,
            index: FileIndex::new(0),
            open: None,
            finder: TarLinkFinder::default(),
        };
        WebDatasetScanner { members: TarReader::default(), records }
    }
}

impl RecordScanner for WebDatasetScanner {
    fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let WebDatasetScanner { members, records } = self;
        let pushed = members.push(bytes, &mut |member| records.take(&member));
        pushed.map_err(|what| records.index.fault(&what))
    }

    fn records(&self) -> u32 {
        self.records.index.len()
    }

    fn stop(self: Box<Self>) -> FileIndex {
        let Records { index, finder, .. } = self.records;
        index.links(finder.finish())
    }

    fn check_end(&self) -> Result<(), SourceError> {
        if self.members.is_ended() {
            return Ok(());
        }
        let at = self.members.at();
        let what = format!(
            "the archive ends at byte {at}, without its end mark: it is cut short; copy or write it anew, or, if \
             nothing is missing, add the mark with `truncate --size=+1024`"
        );
        Err(self.records.index.fault(&what))
    }

    fn finish(mut self: Box<Self>) -> Result<FileIndex, SourceError> {
        if let Some((_, end)) = self.records.open.take() {
            let closed = self.records.close(end);
            closed.map_err(|what| self.records.index.fault(&what))?;
        }
        let Records { index, finder, limits, .. } = self.records;
        let index = index.links(finder.finish());
        index.check_links(limits)?;
        Ok(index)
    }
}

impl Records {
    fn take(&mut self, member: &TarMember<'_>) -> Result<(), String> {
        self.finder.add(member)?;
        let Some((name, _)) = split_name(member.name) else { return Ok(()) };
        match &mut self.open {
            Some((open, end)) if open == name => *end = member.end,
            _ => {
                // Bytes between two records are read with the first of them.
                if self.open.is_some() {
                    self.close(member.start)?;
                }
                self.open = Some((name.to_vec(), member.end));
            }
        }
        self.length(member.end).map(|_| ())
    }

    /// Ends the record in hand at `end`.
    fn close(&mut self, end: u64) -> Result<(), String> {
        let length = self.length(end)?;
        self.index.push(length, self.limits)
    }

    /// Length of the record in hand if it ended at `end`.
    fn length(&self, end: u64) -> Result<u32, String> {
        let (bytes, record_bytes) = (end - self.index.file_bytes(), self.limits.record_bytes);
        let length = u32::try_from(bytes).ok().filter(|length| *length <= record_bytes);
        length.ok_or_else(|| format!("it has {bytes} bytes; the limit is {record_bytes}"))
    }
}

/// Most members that a message names.
const MAX_NAMED: usize = 8;

/// One feature a pipeline names.
#[derive(Debug)]
struct Wanted {
    /// Keys in order of preference.
    keys: Vec<String>,
    feature: Feature,
}

/// Finds the features of a pipeline in records; feature i goes to cell i.
#[derive(Debug)]
pub struct WebDatasetRecordReader {
    /// In the order of the field names.
    wanted: Vec<Wanted>,
}

impl WebDatasetRecordReader {
    pub(crate) fn new(features: &FeatureMap) -> Self {
        let wanted = features.values().map(|feature| Wanted {
            keys: feature.key.split(';').map(str::to_owned).collect(),
            feature: feature.clone(),
        });
        WebDatasetRecordReader { wanted: wanted.collect() }
    }
}

/// The member found for a feature.
#[derive(Debug)]
struct Found {
    /// Index of its key among the feature's.
    rank: usize,
    content: Range<usize>,
    /// The target of a link; one to a file of the archive has been replaced by it.
    target: Option<String>,
}

/// Whether a key, or pattern of one, is that of a member.
fn is_key(key: &str, extension: &[u8]) -> bool {
    let Some(end) = key.strip_prefix("*.") else {
        return key.as_bytes().eq_ignore_ascii_case(extension);
    };
    let Some(start) = extension.len().checked_sub(end.len()) else { return false };
    extension[start..].eq_ignore_ascii_case(end.as_bytes())
        && (start == 0 || extension[start - 1] == b'.')
}

/// A key as names of members have it.
fn dotted(key: &str) -> String {
    if key.starts_with("*.") { format!("`{key}`") } else { format!("`.{key}`") }
}

impl Found {
    fn from_member(member: &TarMember<'_>, rank: usize) -> Self {
        let content = member.content.start as usize..member.content.end as usize;
        let target = member.link.map(|link| String::from_utf8_lossy(link.target).into_owned());
        Self { rank, content, target }
    }
}

impl ReadRecord for WebDatasetRecordReader {
    fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let mut found: Vec<Option<Found>> = self.wanted.iter().map(|_| None).collect();
        let mut members = TarReader::default();
        let mut others = Vec::new();
        members.push(record, &mut |member| {
            let Some((_, key)) = split_name(member.name) else { return Ok(()) };
            if others.len() < MAX_NAMED {
                others.push(format!("`.{}`", String::from_utf8_lossy(key).escape_debug()));
            }
            for (wanted, found) in self.wanted.iter().zip(&mut found) {
                let rank = wanted.keys.iter().position(|wanted| is_key(wanted, key));
                let Some(rank) = rank else { continue };
                match found {
                    Some(best) if best.rank < rank => {}
                    Some(best) if best.rank == rank => {
                        return Err(format!("it has two members {}", dotted(&wanted.keys[rank])));
                    }
                    _ => *found = Some(Found::from_member(&member, rank)),
                }
            }
            Ok(())
        })?;
        let mut bytes = 0;
        for ((wanted, found), cell) in self.wanted.iter().zip(found).zip(cells) {
            let missing = || {
                let keys: Vec<String> = wanted.keys.iter().map(|key| dotted(key)).collect();
                let (keys, others) = (keys.join(" or "), others.join(", "));
                format!(
                    "member {keys} is missing; it has {others}: if members of a record lie apart in the archive, write it \
                     with `tar --sort=name`"
                )
            };
            let Some(Found { rank, content: range, target }) = found else {
                if words::put_default(&wanted.feature, cell) {
                    bytes += cell.place.bytes();
                    continue;
                }
                return Err(missing());
            };
            if let Some(target) = target {
                let key = dotted(&wanted.keys[rank]);
                return Err(format!(
                    "member {key} is a link to `{target}`, which is no file of this archive: write it with \
                     `tar --dereference --hard-dereference`"
                ));
            }
            let cut = || "a member reaches beyond the record".to_owned();
            let content = record.get(range.clone()).ok_or_else(cut)?;
            bytes += wanted.read(rank, content, range, cell)?;
        }
        Ok(bytes)
    }
}

impl Wanted {
    /// Puts the value into `cell`; returns its bytes.
    fn read(
        &self,
        rank: usize,
        content: &[u8],
        range: Range<usize>,
        cell: &mut FieldCell,
    ) -> Result<usize, String> {
        if self.feature.dtype == FeatureDType::Bytes {
            cell.place = CellStorage::Record(range);
            return Ok(content.len());
        }
        let numbers = if npy::is_npy(content) { npy::read } else { words::numbers };
        numbers(&self.feature, content, cell)
            .map_err(|what| format!("member {} {what}", dotted(&self.keys[rank])))
    }
}

#[cfg(test)]
mod tests;

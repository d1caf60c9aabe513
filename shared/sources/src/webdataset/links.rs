//! Links of a tar file to files in it: a record that is read has the file in place of the link.
//!
//! A link leads where Python's `tarfile` finds its target: a hard link to the last member before it that has its name,
//! a symbolic one to the last of the archive.

use super::tar::{self, BLOCK_BYTES, TarMember};
use crate::{lengths::RecordLengths, varint};
use bytes::Bytes;
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Range,
};

/// Most links of a file.
const MAX_LINKS: usize = 1 << 20;
/// Most links that lead to each other, as on Linux.
const MAX_STEPS: usize = 40;
/// Bytes of a stored link: three numbers.
const MAX_LINK_BYTES: usize = 30;
/// Most bytes of the links in a stored index.
pub(crate) const MAX_STORED_BYTES: usize = MAX_LINKS * MAX_LINK_BYTES + 10;

/// A link to a file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    /// The end of its header.
    at: u64,
    /// The bytes of the file.
    content: Range<u64>,
}

/// The links of an archive to files in it, in the archive's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TarLinks(Vec<Link>);

impl TarLinks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Leaves those that lead to files before byte `end` of the archive.
    pub(crate) fn retain_before(&mut self, end: u64) {
        self.0.retain(|link| link.content.end <= end);
    }

    /// The links whose headers end in `range`.
    fn within(&self, range: &Range<u64>) -> &[Link] {
        let start = self.0.partition_point(|link| link.at <= range.start);
        let end = self.0.partition_point(|link| link.at <= range.end);
        self.0.get(start..end).unwrap_or_default()
    }

    /// The bytes of the archive that links in `range` lead to.
    pub(crate) fn contents(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.within(range).iter().map(|link| link.content.clone()).filter(|bytes| !bytes.is_empty())
    }

    /// Bytes that the records in `range` gain by their links.
    pub(crate) fn more_bytes(&self, range: &Range<u64>) -> u64 {
        self.contents(range).map(|bytes| padded(bytes.end - bytes.start)).sum()
    }

    /// Records from `first` on, of `sizes` and end to end in `data` from byte `start` of the archive, with files in
    /// place of links. `read` gives other bytes of the archive.
    ///
    /// # Errors
    /// If the data is not what was indexed.
    pub(crate) fn open(
        &self,
        first: u32,
        start: u64,
        sizes: impl Iterator<Item = u64>,
        data: &[u8],
        read: impl Fn(&Range<u64>) -> Result<Bytes, String>,
    ) -> Result<(RecordLengths, Bytes), String> {
        let wrong = || "the records are not those that were indexed".to_owned();
        let mut out = Vec::new();
        let mut window = RecordLengths::new(first, 0);
        let (mut at, mut done) = (start, 0);
        for bytes in sizes {
            let record = at..at + bytes;
            let before = out.len();
            for link in self.within(&record) {
                let (end, content) = ((link.at - start) as usize, read(&link.content)?);
                let from = end.checked_sub(BLOCK_BYTES).filter(|from| *from >= done);
                let from = from.ok_or_else(wrong)?;
                out.extend_from_slice(data.get(done..from).ok_or_else(wrong)?);
                let header = data.get(from..end).ok_or_else(wrong)?;
                let header = tar::as_file(header, content.len() as u64).ok_or_else(wrong)?;
                out.extend_from_slice(header.as_bytes());
                out.extend_from_slice(&content);
                out.resize(out.len() + (padded(content.len() as u64) as usize - content.len()), 0);
                done = end;
            }
            let end = (record.end - start) as usize;
            out.extend_from_slice(data.get(done..end).ok_or_else(wrong)?);
            window.push(u32::try_from(out.len() - before).map_err(|_| wrong())?);
            (at, done) = (record.end, end);
        }
        Ok((window, out.into()))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Link>()
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.0.len() as u64);
        let mut before = 0;
        for Link { at, content } in &self.0 {
            varint::put(out, at - before);
            varint::put(out, content.start);
            varint::put(out, content.end - content.start);
            before = *at;
        }
    }

    /// Takes the stored form off the start of `rest`; files have at most `most` bytes.
    pub(crate) fn decode(rest: &mut &[u8], most: u32) -> Result<Self, String> {
        let count = varint::take(rest)?;
        let mut links = Vec::new();
        let mut at = 0_u64;
        for _ in 0..count {
            at = at.saturating_add(varint::take(rest)?);
            let (start, bytes) = (varint::take(rest)?, varint::take(rest)?);
            let end = start.checked_add(bytes).filter(|_| bytes <= u64::from(most));
            let end = end.ok_or("a link leads to too large a file")?;
            links.push(Link { at, content: start..end });
        }
        Ok(Self(links))
    }
}

fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}

/// Finds where the links of an archive lead while its members pass.
#[derive(Debug, Default)]
pub(crate) struct TarLinkFinder {
    /// The last member of each name so far, by the name's hash.
    members: HashMap<u64, Target>,
    links: Vec<Found>,
}

#[derive(Clone, Debug)]
enum Target {
    File(Range<u64>),
    /// The link with this index.
    Link(usize),
}

#[derive(Debug)]
struct Found {
    at: u64,
    to: To,
}

#[derive(Debug)]
enum To {
    Known(Option<Target>),
    /// The last member whose name has this hash.
    Named(u64),
}

impl TarLinkFinder {
    /// Takes the next member.
    ///
    /// # Errors
    /// If there are too many links.
    pub(crate) fn add(&mut self, member: &TarMember<'_>) -> Result<(), String> {
        let target = match member.link {
            None => Target::File(member.content.clone()),
            Some(_) if self.links.len() == MAX_LINKS => {
                return Err(format!("the archive has more than {MAX_LINKS} links, the limit"));
            }
            Some(link) => {
                let folder = member.name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                let to = if link.is_hard {
                    To::Known(self.members.get(&hash(&[link.target])).cloned())
                } else {
                    To::Named(hash(&[&member.name[..folder], link.target]))
                };
                self.links.push(Found { at: member.content.start, to });
                Target::Link(self.links.len() - 1)
            }
        };
        self.members.insert(hash(&[member.name]), target);
        Ok(())
    }

    /// The links that lead to files.
    pub(crate) fn finish(self) -> TarLinks {
        let found = self
            .links
            .iter()
            .filter_map(|link| Some(Link { at: link.at, content: self.file_of(link)? }));
        TarLinks(found.collect())
    }

    fn file_of<'a>(&'a self, mut link: &'a Found) -> Option<Range<u64>> {
        for _ in 0..MAX_STEPS {
            let target = match &link.to {
                To::Known(target) => target.as_ref()?,
                To::Named(name) => self.members.get(name)?,
            };
            match target {
                Target::File(content) => return Some(content.clone()),
                Target::Link(index) => link = self.links.get(*index)?,
            }
        }
        None
    }
}

/// A hash of the path that `parts` make, whichever way it is written.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut path: Vec<&[u8]> = Vec::new();
    for part in parts.iter().flat_map(|part| part.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." if path.last().is_some_and(|last| *last != b"..") => drop(path.pop()),
            part => path.push(part),
        }
    }
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

//! Sorted listing by pages, in memory that does not grow with the number of keys.
//!
//! A directory is read whole, but only as many first names are held as a page needs; if there were more, it is read again
//! from there. Directories excluded by the prefix are never opened.

use std::collections::BinaryHeap;
use std::io;

use s3s::{S3Result, s3_error};

use super::bucket::Bucket;
use super::names::Kind;
use super::record::Info;
use crate::ids;

/// S3's limit of keys per page.
pub(super) const MAX_KEYS: usize = 1000;
/// S3's limit of a key's length.
const MAX_KEY_BYTES: usize = 1024;

/// A listing request.
#[derive(Debug, Default)]
pub(super) struct Query {
    pub prefix: String,
    /// Keys that contain it after the prefix are folded into one entry.
    pub delimiter: Option<String>,
    pub position: Position,
    pub max_keys: usize,
}

/// Start of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Position {
    #[default]
    Start,
    /// After this key.
    After(String),
    /// After all keys with this prefix.
    Past(String),
}

impl Position {
    /// Encodes it as a token that is opaque to clients and safe in a URL.
    pub(super) fn token(&self) -> String {
        match self {
            Self::Start => String::new(),
            Self::After(key) => format!("k{}", ids::hex(key.as_bytes())),
            Self::Past(prefix) => format!("p{}", ids::hex(prefix.as_bytes())),
        }
    }

    /// # Errors
    /// `InvalidArgument` for a token of another format.
    pub(super) fn parse(token: &str) -> S3Result<Self> {
        let invalid = || s3_error!(InvalidArgument, "the continuation token is not one");
        let (kind, text) = token.split_at_checked(1).ok_or_else(invalid)?;
        if text.len() > 2 * MAX_KEY_BYTES || !text.len().is_multiple_of(2) {
            return Err(invalid());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let bytes: Option<Vec<u8>> = text
            .as_bytes()
            .chunks_exact(2)
            .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
            .collect();
        let key = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(invalid)?;
        match kind {
            "k" => Ok(Self::After(key)),
            "p" => Ok(Self::Past(key)),
            _ => Err(invalid()),
        }
    }
}

/// One entry of a listing.
#[derive(Debug)]
pub(super) enum Entry {
    Object(String, Box<Info>),
    /// Common prefix of folded keys.
    Prefix(String),
}

/// One page of a listing, and the start of the next one, if any.
#[derive(Debug)]
pub(super) struct Page {
    pub entries: Vec<Entry>,
    pub next: Option<Position>,
}

/// Lists. Blocks.
///
/// # Errors
/// Errors of the disk. Objects deleted meanwhile, and unreadable files, are omitted.
pub(super) fn list(bucket: &Bucket, query: &Query) -> io::Result<Page> {
    let mut page = Page { entries: Vec::new(), next: None };
    if query.max_keys == 0 {
        return Ok(page);
    }
    let mut walker = Walker::new(bucket, query);
    while let Some(key) = walker.next_key()? {
        let entry = match common_prefix(&key, query) {
            Some(prefix) => Entry::Prefix(prefix.to_owned()),
            None => match bucket.info(&key) {
                Ok(Some(info)) => Entry::Object(key, Box::new(info)),
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(error) => return Err(error),
            },
        };
        if page.entries.len() == query.max_keys {
            page.next = page.entries.last().map(|last| match last {
                Entry::Object(key, _) => Position::After(key.clone()),
                Entry::Prefix(prefix) => Position::Past(prefix.clone()),
            });
            break;
        }
        if let Entry::Prefix(prefix) = &entry {
            walker.skip(prefix);
        }
        page.entries.push(entry);
    }
    Ok(page)
}

fn common_prefix<'k>(key: &'k str, query: &Query) -> Option<&'k str> {
    let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let start = query.prefix.len();
    let found = key[start..].find(delimiter)?;
    Some(&key[..start + found + delimiter.len()])
}

/// A directory entry. Ordered by its keys, which are unique within a directory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Branch {
    /// The key, or the common prefix of all keys in it.
    keys: Vec<u8>,
    name: String,
    is_object: bool,
}

/// A directory being walked.
struct Frame {
    directory: String,
    /// Common prefix of all keys in it.
    keys: Vec<u8>,
    /// The next branches in reverse order.
    batch: Vec<Branch>,
    /// The last branch taken.
    seen: Option<Vec<u8>>,
    has_more: bool,
}

struct Walker<'b> {
    bucket: &'b Bucket,
    prefix: &'b [u8],
    after: &'b [u8],
    skipped: Vec<u8>,
    batch_size: usize,
    stack: Vec<Frame>,
}

impl<'b> Walker<'b> {
    fn new(bucket: &'b Bucket, query: &'b Query) -> Self {
        let (directory, used) = bucket.prefix_directory(&query.prefix);
        let prefix = query.prefix.as_bytes();
        let (after, skipped): (&[u8], &[u8]) = match &query.position {
            Position::Start => (b"", b""),
            Position::After(key) => (key.as_bytes(), b""),
            Position::Past(prefix) => (prefix.as_bytes(), prefix.as_bytes()),
        };
        let start = Frame::new(directory, prefix[..used].to_vec());
        let batch_size = query.max_keys.saturating_add(1);
        Self { bucket, prefix, after, skipped: skipped.to_vec(), batch_size, stack: vec![start] }
    }

    /// Skips all further keys with this prefix.
    fn skip(&mut self, prefix: &str) {
        self.skipped.clear();
        self.skipped.extend_from_slice(prefix.as_bytes());
        while self.stack.last().is_some_and(|frame| self.is_skipped(&frame.keys)) {
            self.stack.pop();
        }
    }

    fn is_skipped(&self, keys: &[u8]) -> bool {
        !self.skipped.is_empty() && keys.starts_with(&self.skipped)
    }

    fn next_key(&mut self) -> io::Result<Option<String>> {
        while let Some(frame) = self.stack.last_mut() {
            let Some(branch) = frame.batch.pop() else {
                if frame.has_more {
                    self.refill()?;
                } else {
                    self.stack.pop();
                }
                continue;
            };
            if self.is_skipped(&branch.keys) {
                continue;
            }
            if !branch.is_object {
                let frame = &self.stack[self.stack.len() - 1];
                let directory = format!("{}{}/", frame.directory, branch.name);
                self.stack.push(Frame::new(directory, branch.keys));
            } else if let Ok(key) = String::from_utf8(branch.keys) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Reads the next branches of the top directory.
    fn refill(&mut self) -> io::Result<()> {
        let (prefix, after, batch_size) = (self.prefix, self.after, self.batch_size);
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        let Frame { directory, keys: start, seen, .. } = frame;
        let mut first: BinaryHeap<Branch> = BinaryHeap::new();
        let mut has_more = false;
        self.bucket.scan(directory, &mut |name, part, kind| {
            let mut keys = Vec::with_capacity(start.len() + part.len() + 1);
            keys.extend_from_slice(start);
            keys.extend_from_slice(part);
            if kind == Kind::Directory {
                keys.push(b'/');
            }
            let is_object = kind == Kind::Object;
            if keys.len() > MAX_KEY_BYTES
                || seen.as_ref().is_some_and(|seen| keys <= *seen)
                || !is_wanted(&keys, is_object, prefix, after)
            {
                return;
            }
            if first.len() == batch_size {
                has_more = true;
                if first.peek().is_some_and(|last| keys > last.keys) {
                    return;
                }
                first.pop();
            }
            first.push(Branch { keys, name: name.to_owned(), is_object });
        })?;
        let mut batch = first.into_sorted_vec();
        batch.reverse();
        frame.seen = batch.first().map(|last| last.keys.clone()).or_else(|| frame.seen.take());
        frame.batch = batch;
        frame.has_more = has_more;
        Ok(())
    }
}

impl Frame {
    fn new(directory: String, keys: Vec<u8>) -> Self {
        Self { directory, keys, batch: Vec::new(), seen: None, has_more: true }
    }
}

/// Whether a branch is, or may contain, a key after `after` that starts with `prefix`.
fn is_wanted(keys: &[u8], is_object: bool, prefix: &[u8], after: &[u8]) -> bool {
    if is_object {
        keys.starts_with(prefix) && keys > after
    } else {
        (keys.starts_with(prefix) || prefix.starts_with(keys))
            && (keys > after || after.starts_with(keys))
    }
}

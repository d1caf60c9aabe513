//! Selects the files that a dataset reads, with reasons for those it leaves out.

use crate::{ListError, printable};
use gristmill_host::folder::UnreadableReason;
use gristmill_ports::ObjectInfo;
use gristmill_sources::{FORMATS, FormatDefinition};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Characters that turn a path into a pattern.
pub(crate) const WILD: [char; 3] = ['*', '?', '['];
/// Most names shown in a line.
const SHOWN: usize = 5;

/// Files that were considered but are not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOutFiles {
    /// Number of files considered.
    pub of: usize,
    /// Reasons by file name, relative to the dataset's folder or bucket.
    pub files: BTreeMap<String, String>,
    /// Advice on how to read files of these kinds.
    remedies: BTreeSet<&'static str>,
    /// Classes without an image.
    classes: Vec<String>,
}

impl LeftOutFiles {
    /// Whether every file is read.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.classes.is_empty()
    }

    /// JSON for a report: `{"count", "of", "files": {NAME: REASON}}`, with at most 100 files.
    pub fn as_json(&self) -> serde_json::Value {
        let named: BTreeMap<_, _> = self.files.iter().take(100).collect();
        serde_json::json!({ "count": self.files.len(), "of": self.of, "files": named })
    }

    /// Classes without an image, with their labels.
    pub(crate) fn from_empty_classes(empty: Vec<(String, u32)>) -> Self {
        let named =
            empty.into_iter().map(|(name, label)| format!("{} (label {label})", printable(&name)));
        Self { classes: named.collect(), ..Self::default() }
    }

    /// Adds the counts and examples of `other`.
    pub fn join(&mut self, other: Self) {
        self.of += other.of;
        self.files.extend(other.files);
        self.remedies.extend(other.remedies);
        self.classes.extend(other.classes);
    }
}

impl fmt::Display for LeftOutFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.files.is_empty() {
            let plural = if self.of == 1 { "" } else { "s" };
            write!(f, "left out {} of {} file{plural}: ", self.files.len(), self.of)?;
            let files = self.files.iter().map(|(name, why)| format!("{} ({why})", printable(name)));
            write_some(f, files)?;
            self.remedies.iter().try_for_each(|remedy| write!(f, "; {remedy}"))?;
        }
        if !self.classes.is_empty() {
            let between = if self.files.is_empty() { "" } else { "; " };
            let plural = if self.classes.len() == 1 { "" } else { "es" };
            write!(f, "{between}no image in {} class{plural}: ", self.classes.len())?;
            write_some(f, self.classes.iter())?;
        }
        Ok(())
    }
}

/// Writes the first items, and the number of the others.
fn write_some(
    f: &mut fmt::Formatter<'_>,
    items: impl ExactSizeIterator<Item: fmt::Display>,
) -> fmt::Result {
    let more = items.len().saturating_sub(SHOWN);
    for (i, item) in items.take(SHOWN).enumerate() {
        let between = if i == 0 { "" } else { ", " };
        write!(f, "{between}{item}")?;
    }
    if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
}

/// One path of a dataset.
#[derive(Debug)]
pub(crate) struct PathSelector {
    text: String,
    glob: Option<Glob>,
}

#[derive(Debug)]
struct Glob {
    whole: glob::Pattern,
    /// One per directory of the path, and one for the file; patterns from `**` on match anything.
    parts: Vec<glob::Pattern>,
    any_depth: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum FileDecision {
    Read,
    LeftOut(String),
    /// The file was not requested.
    Other,
}

impl PathSelector {
    /// The selectors that `pattern` expands to, in order.
    pub(crate) fn all(pattern: &str) -> Result<Vec<Self>, ListError> {
        let bad = |what: String| ListError::Pattern(pattern.to_owned(), what);
        let texts = expand_braces(pattern).map_err(bad)?;
        texts.into_iter().map(|text| Self::one(text).map_err(bad)).collect()
    }

    /// The files that `pattern` names if only braces are patterns, in order.
    pub(crate) fn files(pattern: &str) -> Result<Vec<Self>, ListError> {
        let texts = expand_braces(pattern)
            .map_err(|why| ListError::Pattern(without_query(pattern), why))?;
        Ok(texts.into_iter().map(|text| Self { text, glob: None }).collect())
    }

    /// The text as written, with braces expanded.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn one(text: String) -> Result<Self, String> {
        if !text.contains(WILD) {
            return Ok(Self { text, glob: None });
        }
        let compile = |text: &str| glob::Pattern::new(text).map_err(|error| error.to_string());
        let whole = compile(&text)?;
        let any_depth = text.split('/').any(|part| part == "**");
        let parts = text.split('/').take_while(|part| *part != "**");
        let parts = parts.map(compile).collect::<Result<_, _>>()?;
        Ok(Self { glob: Some(Glob { whole, parts, any_depth }), text })
    }

    /// The common prefix of all keys that it selects.
    fn prefix(&self) -> &str {
        &self.text[..self.text.find(WILD).unwrap_or(self.text.len())]
    }

    /// The path of `key` below the named directory; none if it is elsewhere.
    fn below<'k>(&self, key: &'k str) -> Option<&'k str> {
        let named = self.text.trim_end_matches('/');
        match named {
            "" => Some(key),
            _ => key.strip_prefix(named)?.strip_prefix('/'),
        }
    }

    fn judge(&self, key: &str, format: &FormatDefinition) -> FileDecision {
        if let Some(glob) = &self.glob {
            return match (glob.matches(key, true), glob.matches(key, false)) {
                (true, _) => by_extension(key, format),
                (false, true) => FileDecision::LeftOut("hidden".to_owned()),
                (false, false) => FileDecision::Other,
            };
        }
        match self.below(key) {
            _ if key == self.text => FileDecision::Read,
            Some(below) => judge(below, format),
            None => FileDecision::Other,
        }
    }

    /// Whether files in the directory `key`, which ends in a slash, may be read.
    fn enters(&self, key: &str, format: &FormatDefinition) -> bool {
        let key = key.trim_end_matches('/');
        if let Some(glob) = &self.glob {
            return glob.enters(key);
        }
        let named = self.text.trim_end_matches('/');
        let leads_there =
            named == key || named.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'));
        leads_there || self.below(key).is_some_and(|below| hidden(below, format).is_none())
    }
}

impl Glob {
    fn matches(&self, key: &str, require_literal_leading_dot: bool) -> bool {
        self.whole.matches_with(key, options(require_literal_leading_dot))
    }

    fn enters(&self, directory: &str) -> bool {
        let depth = directory.split('/').count();
        let on_the_way = directory
            .split('/')
            .zip(&self.parts)
            .all(|(name, part)| part.matches_with(name, options(true)));
        let beyond = directory.split('/').skip(self.parts.len());
        let hidden = || beyond.clone().any(|name| name.starts_with('.'));
        on_the_way && (depth < self.parts.len() || (self.any_depth && !hidden()))
    }
}

fn options(require_literal_leading_dot: bool) -> glob::MatchOptions {
    glob::MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot,
        ..Default::default()
    }
}

/// The common prefix of all keys that `selectors` select.
pub(crate) fn shared_prefix(selectors: &[PathSelector]) -> &str {
    let mut prefixes = selectors.iter().map(PathSelector::prefix);
    let first = prefixes.next().unwrap_or_default();
    prefixes.fold(first, |shared, prefix| {
        let same = shared.char_indices().zip(prefix.chars()).find(|((_, a), b)| a != b);
        &shared[..same.map_or(shared.len().min(prefix.len()), |((at, _), _)| at)]
    })
}

/// Whether any of `selectors` may read files in the directory `key`, which ends in a slash.
pub(crate) fn enters(selectors: &[PathSelector], key: &str, format: &FormatDefinition) -> bool {
    selectors.iter().any(|selector| selector.enters(key, format))
}

/// A file or pattern at a location, as messages show it.
pub(crate) fn shown(place: &str, pattern: &str) -> String {
    if gristmill_web::is_web(place) {
        format!("{place}/{}", without_query(pattern))
    } else {
        format!("{place}/{pattern}")
    }
}

/// The path of a web address. The query may be a secret.
fn without_query(key: &str) -> String {
    match key.split_once('?') {
        Some((path, _)) => format!("{path}?..."),
        None => key.to_owned(),
    }
}

/// Everything found at a location.
#[derive(Debug, Default)]
pub(crate) struct LocationListing {
    /// In the order of their keys.
    pub files: Vec<ObjectInfo>,
    /// Entries that are not readable files, and skipped directories, with a slash at the end.
    pub others: Vec<(String, Option<UnreadableReason>)>,
    /// Directories that were searched, with a slash at the end.
    pub directories: Vec<String>,
}

/// Chooses the files that `selectors`, written as `pattern`, read, selector by selector.
pub(crate) fn select(
    selectors: &[PathSelector],
    format: &FormatDefinition,
    there: &LocationListing,
    place: &str,
) -> Result<(Vec<ObjectInfo>, LeftOutFiles), ListError> {
    let (mut read, mut left_out) = (Vec::new(), LeftOutFiles::default());
    for selector in selectors {
        let (before, mut own) = (read.len(), LeftOutFiles::default());
        let prefix = selector.prefix().trim_end_matches('/');
        let start = there.files.partition_point(|info| info.key.as_str() < prefix);
        let files = there.files[start..].iter().take_while(|info| info.key.starts_with(prefix));
        // A key that ends in a slash marks a directory.
        for info in files.filter(|info| !info.key.ends_with('/')) {
            match selector.judge(&info.key, format) {
                FileDecision::Read => read.push(info.clone()),
                FileDecision::LeftOut(why) => {
                    own.files.insert(info.key.clone(), why);
                }
                FileDecision::Other => {}
            }
        }
        for (key, why) in &there.others {
            if let Some(why) = selector.other(key, why.as_ref(), format, place)? {
                own.files.insert(key.clone(), why);
            }
        }
        own.of = read.len() - before + own.files.len();
        if !own.is_empty() {
            own.remedies.insert(format.files.remedy);
        }
        if read.len() == before {
            let place = shown(place, &selector.text);
            return Err(ListError::Empty { place, left_out: own });
        }
        left_out.join(own);
    }
    Ok((read, left_out))
}

impl PathSelector {
    /// Why an entry that is not a readable file is left out; none if it was not requested.
    fn other(
        &self,
        key: &str,
        why: Option<&UnreadableReason>,
        format: &FormatDefinition,
        place: &str,
    ) -> Result<Option<String>, ListError> {
        let unreadable = |why: &UnreadableReason| ListError::Unreadable {
            path: format!("{place}/{}", key.trim_end_matches('/')),
            why: why.to_string(),
        };
        let Some(why) = why else {
            let below = self.below(key).filter(|_| self.glob.is_none());
            return Ok(below.and_then(|below| hidden(below.trim_end_matches('/'), format)));
        };
        if key.ends_with('/') {
            return if self.enters(key, format) { Err(unreadable(why)) } else { Ok(None) };
        }
        let named = self.glob.is_none() && key == self.text;
        match self.judge(key, format) {
            FileDecision::Read
                if named
                    || matches!(
                        why,
                        UnreadableReason::Unreadable(_) | UnreadableReason::NotText
                    ) =>
            {
                Err(unreadable(why))
            }
            FileDecision::Read => Ok(Some(why.to_string())),
            FileDecision::LeftOut(other) => Ok(Some(other)),
            FileDecision::Other => Ok(None),
        }
    }
}

/// Extensions of compressed files; the extension before them gives the kind.
const PACKED: [&str; 5] = ["bz2", "gz", "lz4", "xz", "zst"];
/// Extensions of files that accompany data but are never data.
const NOTES: [&str; 22] = [
    "cff", "crc", "gif", "htm", "html", "idx", "ipynb", "lock", "log", "md", "md5", "pdf", "pkl",
    "py", "rst", "sha1", "sha256", "sha512", "toml", "xml", "yaml", "yml",
];
const NOTE_NAMES: [&str; 4] = ["LICENSE", "NOTICE", "README", "CITATION"];

/// Whether the name of `key` ends as the files of `format` do.
fn has_extension(key: &str, format: &FormatDefinition) -> bool {
    let extension = key.rsplit_once('.').map(|(_, extension)| extension);
    let known = format.files.extensions;
    extension.is_some_and(|e| known.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

/// Judges a file of a directory; `below` is its path within the directory.
fn judge(below: &str, format: &FormatDefinition) -> FileDecision {
    match hidden(below, format) {
        Some(why) => FileDecision::LeftOut(why),
        None if format.files.only_these => by_extension(below, format),
        None => {
            if is_foreign(below, format) {
                FileDecision::LeftOut(format!("not {}", format.files.noun))
            } else {
                FileDecision::Read
            }
        }
    }
}

/// Formats of images that are not read.
const OTHER_IMAGES: [&str; 12] =
    ["avif", "exr", "gif", "heic", "heif", "ico", "jp2", "jxl", "pbm", "psd", "svg", "tga"];

/// Judges a file that a glob matches: leaves it out only if a strict format does not read its extension.
fn by_extension(key: &str, format: &FormatDefinition) -> FileDecision {
    let extension = key.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let other = extension.filter(|extension| OTHER_IMAGES.contains(&extension.as_str()));
    match (format.files.only_these && !has_extension(key, format), other) {
        (true, Some(other)) => FileDecision::LeftOut(format!(".{other} is not read")),
        (true, None) => FileDecision::LeftOut(format!("not {}", format.files.noun)),
        (false, _) => FileDecision::Read,
    }
}

/// Why the file at `below`, a path within a directory, is hidden; none if it is visible.
fn hidden(below: &str, format: &FormatDefinition) -> Option<String> {
    // Table writers use such names for metadata, but a class directory may have one too.
    let underscored = |name: &str| name.starts_with('_') && !format.files.reads_underscored;
    let mut names = below.split('/');
    names.find_map(|name| match name {
        _ if name.starts_with('.') => Some("hidden".to_owned()),
        _ if underscored(name) => Some("its name begins with _".to_owned()),
        _ => None,
    })
}

/// Whether the name shows that the file has another format.
fn is_foreign(below: &str, format: &FormatDefinition) -> bool {
    let name = below.rsplit('/').next().unwrap_or(below);
    let mut parts: Vec<String> = name.split('.').map(str::to_ascii_lowercase).collect();
    if parts.len() > 2 && parts.last().is_some_and(|last| PACKED.contains(&last.as_str())) {
        parts.pop();
    }
    let extension = match parts.as_slice() {
        [_] => return NOTE_NAMES.contains(&name),
        [_, .., extension] => extension.as_str(),
        [] => return false,
    };
    if format.files.extensions.contains(&extension) {
        return false;
    }
    let of_another = FORMATS.iter().any(|other| other.files.extensions.contains(&extension));
    of_another || NOTES.contains(&extension)
}

// Braces in paths, as in shells and WebDataset: `{a,b}`, `{000..146}`, `{0..10..2}`, `{a..d}`.

/// The character that begins a brace.
pub(crate) const BRACE_MARK: char = '{';
/// Most paths of one pattern.
const MAX_PATHS: usize = 100_000;

/// Expands `text` to its paths, in order; to itself if it has no braces. A brace within `[..]`, or without
/// a comma or `..`, is literal.
pub(crate) fn expand_braces(text: &str) -> Result<Vec<String>, String> {
    let mut done = vec![String::new()];
    let mut rest = text;
    while let Some((before, choices, after)) = first(rest) {
        let mut words = Vec::new();
        for choice in &choices {
            words.extend(expand_braces(choice)?);
        }
        if done.len().saturating_mul(words.len()) > MAX_PATHS {
            return Err(format!("its braces expand to more than {MAX_PATHS} paths"));
        }
        let join = |start: &String| {
            words.iter().map(|word| format!("{start}{before}{word}")).collect::<Vec<_>>()
        };
        done = done.iter().flat_map(join).collect();
        rest = after;
    }
    Ok(done.into_iter().map(|start| start + rest).collect())
}

/// The text before the first brace, its choices, and the text after it.
fn first(text: &str) -> Option<(&str, Vec<String>, &str)> {
    let mut at = 0;
    while let Some(found) = text[at..].find([BRACE_MARK, '[']) {
        let start = at + found;
        if text[start..].starts_with('[') {
            // A character class, in which `]` may come first.
            let inner = text[start + 1..].trim_start_matches('!');
            let first = text.len() - inner.len();
            let skip = inner.chars().next().map_or(0, char::len_utf8);
            let end = text[first + skip..].find(']');
            at = end.map_or(start + 1, |end| first + skip + end + 1);
            continue;
        }
        if let Some((choices, after)) = choices(&text[start + 1..]) {
            return Some((&text[..start], choices, after));
        }
        at = start + 1;
    }
    None
}

/// The choices of a brace and the text after it; `text` starts after the opening brace.
fn choices(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].to_owned());
                start = at + 1;
            }
            '}' => {
                let last = &text[start..at];
                let after = &text[at + 1..];
                if parts.is_empty() {
                    return Some((sequence(last)?, after));
                }
                parts.push(last.to_owned());
                return Some((parts, after));
            }
            _ => {}
        }
    }
    None
}

/// `000..146`, `10..0..2`, `a..d`.
fn sequence(text: &str) -> Option<Vec<String>> {
    let parts: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match parts.as_slice() {
        [first, last] => (*first, *last, 1),
        [first, last, step] => (*first, *last, step.parse::<i64>().ok()?.unsigned_abs().max(1)),
        _ => return None,
    };
    let letter = |text: &str| match text.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(i64::from(*letter)),
        _ => None,
    };
    let count = |from: i64, to: i64| -> Vec<i64> {
        // One more than allowed, to detect too many.
        let far = (0..=from.abs_diff(to) / step).take(MAX_PATHS + 1);
        let step = i128::from(step);
        let sign = if to < from { -1 } else { 1 };
        far.map(|i| (i128::from(from) + sign * step * i128::from(i)) as i64).collect()
    };
    if let (Some(from), Some(to)) = (letter(first), letter(last)) {
        let letters = count(from, to).into_iter();
        return Some(letters.map(|c| char::from(c as u8).to_string()).collect());
    }
    let number = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<i64>().ok()).flatten()
    };
    let (from, to) = (number(first)?, number(last)?);
    let padded = [first, last].iter().any(|text| {
        let digits = text.trim_start_matches('-');
        digits.len() > 1 && digits.starts_with('0')
    });
    let width = if padded { first.len().max(last.len()) } else { 0 };
    Some(count(from, to).into_iter().map(|i| format!("{i:0width$}")).collect())
}

#[cfg(test)]
mod tests;

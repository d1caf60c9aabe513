//! Encodes keys as paths: one directory per `/`, with file names that all file systems preserve.
//!
//! A key becomes a path whose components end in a mark of their kind: `=` an object, `+` a segment that a slash
//! follows, `~` the first bytes of a segment that is too long for one name. So `o/x` (`o+/x=`) and
//! `o/x/y` (`o+/x+/y=`) coexist, and `..` and a trailing slash are ordinary names. Bytes other than `[a-z0-9._-]` are
//! encoded as `%xx`: capitals because some file systems fold case, and non-ASCII bytes because some normalise them.

/// Most key bytes per name: each may take three, and names hold 255.
const PART_BYTES: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A key ends here.
    Object,
    /// Keys continue after a slash.
    Directory,
    /// Keys continue within the same segment.
    Continued,
}

impl Kind {
    fn mark(self) -> char {
        match self {
            Self::Object => '=',
            Self::Directory => '+',
            Self::Continued => '~',
        }
    }
}

/// Path of the object `key`, relative to its bucket.
pub(super) fn object_path(key: &str) -> String {
    let mut path = String::with_capacity(key.len() * 2 + 16);
    let tail = append_directories(key, &mut path);
    append_name(tail, Kind::Object, &mut path);
    path
}

/// The deepest directory that contains every key with `prefix`.
pub(super) fn prefix_directory(prefix: &str) -> String {
    let mut path = String::new();
    append_directories(prefix, &mut path);
    path
}

/// The key with this path; none for a path that cannot be decoded.
pub(super) fn parse_path(path: &str) -> Option<String> {
    let mut key = Vec::new();
    let mut last = None;
    for name in path.split('/') {
        let (part, kind) = parse_name(name)?;
        key.extend(part);
        if kind == Kind::Directory {
            key.push(b'/');
        }
        last = Some(kind);
    }
    String::from_utf8(key).ok().filter(|_| last == Some(Kind::Object))
}

/// Appends the directories that lead to the last name. Returns the bytes of that name.
fn append_directories<'k>(key: &'k str, path: &mut String) -> &'k [u8] {
    let mut segments = key.as_bytes().split(|&byte| byte == b'/').peekable();
    while let Some(mut segment) = segments.next() {
        while let Some((part, rest)) = segment.split_at_checked(PART_BYTES) {
            append_name(part, Kind::Continued, path);
            path.push('/');
            segment = rest;
        }
        if segments.peek().is_none() {
            return segment;
        }
        append_name(segment, Kind::Directory, path);
        path.push('/');
    }
    &[]
}

fn append_name(part: &[u8], kind: Kind, out: &mut String) {
    for &byte in part {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            out.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
    }
    out.push(kind.mark());
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-')
}

fn hex_digit(value: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(value)])
}

/// Key bytes encoded by a name on disk. `None` for a name that cannot be decoded.
fn parse_name(name: &str) -> Option<(Vec<u8>, Kind)> {
    let kinds = [Kind::Object, Kind::Directory, Kind::Continued];
    let (text, kind) =
        kinds.into_iter().find_map(|kind| Some((name.strip_suffix(kind.mark())?, kind)))?;
    let mut part = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        part.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            byte if is_plain(byte) => byte,
            _ => return None,
        });
    }
    Some((part, kind))
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_path_of_its_own_that_spells_it() {
        let long = "é/".repeat(341);
        let longer = "Z".repeat(1024);
        let keys = "a|A|o/x|o/x/y|o/x/|o/x//|/|//|/a|.|..|../../etc|a b|a%2Fb|a=|a+|a~|Straße|Strasse|\u{1}|\0";
        let cuts = [&long, &longer, &longer[..80], &longer[..79], &longer[..160]];
        let keys = keys.split('|').chain(cuts);
        let mut paths = std::collections::BTreeSet::new();
        for key in keys {
            let path = object_path(key);
            assert_eq!(parse_path(&path).as_deref(), Some(key), "{path}");
            assert!(path.split('/').all(|name| (1..=255).contains(&name.len())), "{path}");
            assert!(path.split('/').all(|name| name != "." && name != ".."), "{path}");
            assert_eq!(path, path.to_lowercase(), "case folding must not merge two keys");
            assert!(paths.insert(path), "{key}");
        }
    }

    #[test]
    fn the_directory_of_a_prefix_leads_to_every_key_that_starts_with_it() {
        let keys = ["o/x", "o/x/y", "o/xyz", &"k".repeat(300), "a//b"];
        for key in keys {
            let object = object_path(key);
            for end in 0..=key.len() {
                let directory = prefix_directory(&key[..end]);
                assert!(object.starts_with(&directory), "{key} {end}: {directory}");
            }
        }
    }

    #[test]
    fn names_no_key_has_are_not_parsed() {
        for name in ["", "a", "A=", "a b=", "%4=", "%zz=", "%4A=", ".DS_Store", "é="] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}

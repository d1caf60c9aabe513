//! The kind of a file, by its name.

use super::Verdict;
use gristmill_sources::{FORMATS, FormatDefinition};

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
pub(super) fn judge(below: &str, format: &FormatDefinition) -> Verdict {
    match hidden(below, format) {
        Some(why) => Verdict::LeftOut(why),
        None if format.files.only_these => by_extension(below, format),
        None => {
            if is_foreign(below, format) {
                Verdict::LeftOut(format!("not {}", format.files.noun))
            } else {
                Verdict::Read
            }
        }
    }
}

/// Formats of images that are not read.
const OTHER_IMAGES: [&str; 12] =
    ["avif", "exr", "gif", "heic", "heif", "ico", "jp2", "jxl", "pbm", "psd", "svg", "tga"];

/// Judges a file that a glob matches: leaves it out only if a strict format does not read its extension.
pub(super) fn by_extension(key: &str, format: &FormatDefinition) -> Verdict {
    let extension = key.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let other = extension.filter(|extension| OTHER_IMAGES.contains(&extension.as_str()));
    match (format.files.only_these && !has_extension(key, format), other) {
        (true, Some(other)) => Verdict::LeftOut(format!(".{other} is not read")),
        (true, None) => Verdict::LeftOut(format!("not {}", format.files.noun)),
        (false, _) => Verdict::Read,
    }
}

/// Why the file at `below`, a path within a directory, is hidden; none if it is visible.
pub(super) fn hidden(below: &str, format: &FormatDefinition) -> Option<String> {
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

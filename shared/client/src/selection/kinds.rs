//! The kind of a file, by its name.

use super::Verdict;
use gristmill_pipeline::Format;

/// Names that image folders take for images, as torchvision's `ImageFolder` does.
const IMAGES: [&str; 9] = ["bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"];
/// Endings of compressed files, before which the kind stands.
const PACKED: [&str; 5] = ["bz2", "gz", "lz4", "xz", "zst"];
/// Files that lie beside data and are never data.
const NOTES: [&str; 22] = [
    "cff", "crc", "gif", "htm", "html", "idx", "ipynb", "lock", "log", "md", "md5", "pdf", "pkl",
    "py", "rst", "sha1", "sha256", "sha512", "toml", "xml", "yaml", "yml",
];
const NOTE_NAMES: [&str; 4] = ["LICENSE", "NOTICE", "README", "CITATION"];

/// Whether a directory of images takes the file of `key`.
fn is_image(key: &str) -> bool {
    let extension = key.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|e| IMAGES.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

/// The decision about a file of a directory; `below` is its path within that.
pub(super) fn judge(below: &str, format: Format) -> Verdict {
    match hidden(below, format) {
        Some(why) => Verdict::LeftOut(why),
        None if format == Format::Images => of_image(below, format),
        None => match is_foreign(below, format) {
            true => Verdict::LeftOut(format!("not {}", wanted(format))),
            false => Verdict::Read,
        },
    }
}

/// Formats of images that are not read.
const OTHER_IMAGES: [&str; 12] =
    ["avif", "exr", "gif", "heic", "heif", "ico", "jp2", "jxl", "pbm", "psd", "svg", "tga"];

/// The decision about a file that a glob names: only files that are no images are left out of images.
pub(super) fn of_image(key: &str, format: Format) -> Verdict {
    let extension = key.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let other = extension.filter(|extension| OTHER_IMAGES.contains(&extension.as_str()));
    match (format == Format::Images && !is_image(key), other) {
        (true, Some(other)) => Verdict::LeftOut(format!(".{other} is not read")),
        (true, None) => Verdict::LeftOut(format!("not {}", wanted(format))),
        (false, _) => Verdict::Read,
    }
}

/// Why what is at `below`, a path within a directory, is not seen there.
pub(super) fn hidden(below: &str, format: Format) -> Option<String> {
    // Programs that write tables leave their notes under such names; a class may well be called so.
    let underscored = |name: &str| name.starts_with('_') && format != Format::Images;
    let mut names = below.split('/');
    names.find_map(|name| match name {
        _ if name.starts_with('.') => Some("hidden".to_owned()),
        _ if underscored(name) => Some("its name begins with _".to_owned()),
        _ => None,
    })
}

/// Whether the name says that it is of another format.
fn is_foreign(below: &str, format: Format) -> bool {
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
    let own: &[Format] = match extension {
        "json" | "jsonl" | "ndjson" => &[Format::Jsonl],
        "parquet" | "parq" | "pq" => &[Format::Parquet],
        "tar" | "tgz" => &[Format::WebDataset],
        "tfrecord" | "tfrecords" | "tfrec" => &[Format::TfRecord],
        "txt" | "text" => return !matches!(format, Format::Jsonl | Format::Csv(_)),
        "csv" | "tsv" | "tab" => return !matches!(format, Format::Csv(_)),
        _ if NOTES.contains(&extension) || is_image(name) => &[],
        _ => return false,
    };
    !own.contains(&format)
}

/// How what a directory of `format` leaves out can be read.
pub(super) fn remedy(format: Format) -> &'static str {
    match format {
        Format::Images => "JPEG, PNG, WebP, BMP, TIFF, PGM and PPM are read: convert others",
        _ => "a glob that matches them reads them",
    }
}

/// How messages call a file of `format`.
fn wanted(format: Format) -> &'static str {
    match format {
        Format::TfRecord => "TFRecord",
        Format::WebDataset => "a tar file",
        Format::Images => "an image",
        Format::Jsonl => "JSON lines",
        Format::Csv(_) => "CSV",
        Format::Parquet => "Parquet",
    }
}

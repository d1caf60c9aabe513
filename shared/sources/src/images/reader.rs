//! One image a file. Many are read as one run of records: each is its label (i64, little-endian) and
//! then the file.

use super::{IMAGE_KEY, ImageClasses, LABEL_KEY};
use crate::{
    FeatureMap, FileFormat, FileIndex, ReadRecord, RecordReaderInput, SourceError, SourceLimits,
};

use gristmill_kernel::{CellStorage, FieldCell};
use gristmill_model::{
    Fingerprint,
    wire::{ImagePack, PACK_IMAGES, PackedImage, SourceFile},
};
use std::collections::{BTreeSet, HashMap};

/// Bytes of the label before a file's content.
pub const LABEL_BYTES: usize = 8;

/// Bytes of the record that a file of this size makes.
///
/// # Errors
/// [`SourceError`] if the file is larger than records may be.
pub fn record_bytes(file_bytes: u64) -> Result<u32, SourceError> {
    let most = u64::from(SourceLimits::default().record_bytes);
    let bytes = file_bytes.checked_add(LABEL_BYTES as u64).filter(|bytes| *bytes <= most);
    // In range: the limit is a u32.
    bytes.map(|bytes| bytes as u32).ok_or_else(|| {
        SourceError(format!("it has {file_bytes} bytes; the limit of an image is {most}"))
    })
}

/// The index of records made of files of these sizes.
///
/// # Errors
/// As [`record_bytes`].
pub fn index(file_bytes: impl IntoIterator<Item = u64>) -> Result<FileIndex, SourceError> {
    let mut index = FileIndex::new(0);
    for bytes in file_bytes {
        index.push(record_bytes(bytes)?, SourceLimits::default()).map_err(SourceError)?;
    }
    Ok(index)
}

/// The file in a record.
pub(crate) fn content(stored: &[u8]) -> &[u8] {
    stored.get(LABEL_BYTES..).unwrap_or_default()
}

/// Finds what a pipeline wants of an image's record; feature i goes to cell i.
#[derive(Debug)]
pub struct ImageRecordReader {
    /// In the order of the field names: whether it is the image, else it is the label.
    is_image: Vec<bool>,
}

impl ImageRecordReader {
    pub(crate) fn new(features: &FeatureMap) -> Self {
        ImageRecordReader {
            is_image: features.values().map(|feature| feature.key == IMAGE_KEY).collect(),
        }
    }
}

impl ReadRecord for ImageRecordReader {
    fn find(&self, stored: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let cut = || "the file was read short".to_owned();
        let label = stored.get(..LABEL_BYTES).ok_or_else(cut)?;
        let mut found = 0;
        for (cell, is_image) in cells.iter_mut().zip(&self.is_image) {
            let range = if *is_image { LABEL_BYTES..stored.len() } else { 0..label.len() };
            found += range.len();
            cell.place = CellStorage::Record(range);
        }
        Ok(found)
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        content(stored)
    }
}

// Packs of images: files that are one record each, labelled, put in an order that mixes classes,
// and grouped. A pack is leased like a file, and is its own index.

/// An image that cannot be read, or has no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct BadImage {
    pub key: String,
    pub why: String,
}

/// A folder of images.
#[derive(Clone, Debug, Default)]
pub struct ImageFolder {
    pub images: Vec<SourceFile>,
    /// The directories that hold them, and others beside these, by key with a slash at the end.
    pub directories: Vec<String>,
}

/// The packs of a folder of images.
#[derive(Clone, Debug)]
pub struct ImagePacks {
    pub packs: Vec<ImagePack>,
    pub empty: EmptyClasses,
}

/// Classes without an image, with their labels.
pub type EmptyClasses = Vec<(String, u32)>;

/// The packs of the images that were found in `bucket` by `pattern`.
///
/// # Errors
/// [`BadImage`] if one is too large, or lies in no class although `source` has a label.
pub fn packs<'a>(
    bucket: &str,
    pattern: &str,
    source: impl Into<RecordReaderInput<'a>>,
    found: ImageFolder,
) -> Result<ImagePacks, BadImage> {
    let RecordReaderInput { format, features } = source.into();
    let classes = match format {
        FileFormat::Images(images) => images.classes.clone(),
        _ => ImageClasses::Found,
    };
    let is_labelled = features.values().any(|feature| feature.key == LABEL_KEY);
    let (images, empty) = arrange(found, root(pattern), classes, is_labelled)?;
    let pack =
        |images: &[PackedImage]| ImagePack { bucket: bucket.to_owned(), images: images.to_vec() };
    Ok(ImagePacks { packs: images.chunks(PACK_IMAGES).map(pack).collect(), empty })
}

/// Reads a stored pack.
///
/// # Errors
/// [`SourceError`] if it is none, or has too many images.
pub fn read_pack(stored: &[u8]) -> Result<ImagePack, SourceError> {
    let pack: ImagePack = serde_json::from_slice(stored)
        .map_err(|error| SourceError(format!("it is not a pack of images: {error}")))?;
    if pack.images.len() <= PACK_IMAGES {
        Ok(pack)
    } else {
        Err(SourceError(format!("it has more than {PACK_IMAGES} images")))
    }
}

/// The index of a pack's records.
///
/// # Errors
/// [`SourceError`] if an image is too large.
pub fn pack_index(pack: &ImagePack) -> Result<FileIndex, SourceError> {
    index(pack.images.iter().map(|image| image.size))
}

/// Labels images, and puts them in an order that has nothing to do with their names: a split then has
/// images of many classes, though those of a class lie together. Returns the classes without an image, too.
fn arrange(
    found: ImageFolder,
    root: &str,
    classes: ImageClasses,
    is_labelled: bool,
) -> Result<(Vec<PackedImage>, EmptyClasses), BadImage> {
    let class = |key: &str| {
        let below = key.strip_prefix(root).unwrap_or(key).trim_start_matches('/');
        below.split_once('/').map(|(class, _)| class.to_owned())
    };
    let keys = found.images.iter().map(|info| &info.key);
    let classes: Vec<String> = match classes {
        ImageClasses::Named(names) => names,
        _ => {
            let directories = found.directories.iter().filter(|key| key.starts_with(root));
            let found: BTreeSet<String> =
                keys.chain(directories).filter_map(|key| class(key)).collect();
            found.into_iter().collect()
        }
    };
    let labels: HashMap<&str, u32> =
        (0..).zip(&classes).map(|(label, name)| (&**name, label)).collect();
    let mut is_empty = vec![is_labelled; classes.len()];
    let mut images = Vec::with_capacity(found.images.len());
    for SourceFile { key, size, etag, .. } in found.images {
        record_bytes(size).map_err(|SourceError(why)| BadImage { key: key.clone(), why })?;
        let class = class(&key);
        let label = class.as_deref().and_then(|class| labels.get(class).copied());
        if label.is_none() && is_labelled {
            let why = match class {
                Some(class) => format!("`classes` does not name its class `{class}`"),
                None => "it lies in no directory that names its class; without `label` among the features it needs \
                         none"
                    .to_owned(),
            };
            return Err(BadImage { key, why });
        }
        let label = label.unwrap_or_default();
        if let Some(is_empty) = is_empty.get_mut(label as usize) {
            *is_empty = false;
        }
        let below = key.strip_prefix(root).unwrap_or(&key);
        let place = Fingerprint::from_content("gristmill order of images v1", below.as_bytes());
        images.push((place, PackedImage { key, size, etag, label }));
    }
    images.sort_by(|(a, one), (b, other)| (a, &one.key).cmp(&(b, &other.key)));
    let empty = (0..).zip(classes).zip(is_empty).filter(|(_, is_empty)| *is_empty);
    let empty = empty.map(|((label, name), _)| (name, label)).collect();
    Ok((images.into_iter().map(|(_, image)| image).collect(), empty))
}

/// The directory whose directories are classes: the pattern as far as nothing in it is wild.
fn root(pattern: &str) -> &str {
    match pattern.find(['*', '?', '[', '{']) {
        Some(wild) => &pattern[..pattern[..wild].rfind('/').map_or(0, |slash| slash + 1)],
        None => pattern,
    }
}

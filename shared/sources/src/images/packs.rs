//! Packs of images: files that are one record each, labelled, put in an order that mixes classes, and
//! grouped. A pack is leased like a file, and is its own index.

use super::{ImageClasses, LABEL_KEY, index, record_bytes};
use crate::{FileFormat, FileIndex, RecordReaderInput, SourceError};
use gristmill_model::{
    Fingerprint,
    wire::{ImagePack, PACK_IMAGES, PackedImage, SourceFile},
};
use std::collections::{BTreeSet, HashMap};

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

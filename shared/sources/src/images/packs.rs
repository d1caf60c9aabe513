//! Packs of images: files that are one record each, labelled, put in an order that mixes classes, and
//! grouped. A pack is leased like a file, and is its own index.

use super::{LABEL_KEY, index, record_bytes};
use crate::{Features, FileIndex, SourceError};
use gristmill_model::{
    Fingerprint,
    wire::{PACK_IMAGES, Pack, PackedImage, SourceFile},
};
use std::collections::BTreeSet;

/// An image that cannot be read, or has no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct BadImage {
    pub key: String,
    pub why: String,
}

/// The packs of the images that were found in `bucket` by `pattern`.
///
/// # Errors
/// [`BadImage`] if one is too large, or lies in no class although `features` have a label.
pub fn packs(
    bucket: &str,
    pattern: &str,
    features: &Features,
    found: Vec<SourceFile>,
) -> Result<Vec<Pack>, BadImage> {
    let labelled = features.values().any(|feature| feature.key == LABEL_KEY);
    let images = arrange(found, root(pattern), labelled)?;
    let pack = |images: &[PackedImage]| Pack { bucket: bucket.to_owned(), images: images.to_vec() };
    Ok(images.chunks(PACK_IMAGES).map(pack).collect())
}

/// Reads a stored pack.
///
/// # Errors
/// [`SourceError`] if it is none, or has too many images.
pub fn read_pack(stored: &[u8]) -> Result<Pack, SourceError> {
    let pack: Pack = serde_json::from_slice(stored)
        .map_err(|error| SourceError(format!("it is not a pack of images: {error}")))?;
    match pack.images.len() <= PACK_IMAGES {
        true => Ok(pack),
        false => Err(SourceError(format!("it has more than {PACK_IMAGES} images"))),
    }
}

/// The index of a pack's records.
///
/// # Errors
/// [`SourceError`] if an image is too large.
pub fn pack_index(pack: &Pack) -> Result<FileIndex, SourceError> {
    index(pack.images.iter().map(|image| image.size))
}

/// Labels images, and puts them in an order that has nothing to do with their names: a split then has
/// images of many classes, though those of a class lie together.
fn arrange(
    found: Vec<SourceFile>,
    root: &str,
    labelled: bool,
) -> Result<Vec<PackedImage>, BadImage> {
    let class = |key: &str| {
        let below = key.strip_prefix(root).unwrap_or(key).trim_start_matches('/');
        below.split_once('/').map(|(class, _)| class.to_owned())
    };
    let classes: BTreeSet<String> = found.iter().filter_map(|info| class(&info.key)).collect();
    let classes: Vec<String> = classes.into_iter().collect();
    let mut images = Vec::with_capacity(found.len());
    for SourceFile { key, size, etag, .. } in found {
        record_bytes(size).map_err(|SourceError(why)| BadImage { key: key.clone(), why })?;
        let label = class(&key).and_then(|class| classes.binary_search(&class).ok());
        if label.is_none() && labelled {
            let why = "it lies in no directory that names its class; without `label` among the \
                       features it needs none";
            return Err(BadImage { key, why: why.to_owned() });
        }
        let label = label.map_or(0, |label| label as u32);
        let below = key.strip_prefix(root).unwrap_or(&key);
        let place = Fingerprint::of("gristmill order of images v1", below.as_bytes());
        images.push((place, PackedImage { key, size, etag, label }));
    }
    images.sort_by(|(a, one), (b, other)| (a, &one.key).cmp(&(b, &other.key)));
    Ok(images.into_iter().map(|(_, image)| image).collect())
}

/// The directory whose directories are classes: the pattern as far as nothing in it is wild.
fn root(pattern: &str) -> &str {
    match pattern.find(['*', '?', '[', '{']) {
        Some(wild) => &pattern[..pattern[..wild].rfind('/').map_or(0, |slash| slash + 1)],
        None => pattern,
    }
}

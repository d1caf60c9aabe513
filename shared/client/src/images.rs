//! Folders of images as datasets: listed once, put in an order that mixes classes, and grouped into
//! packs that are leased like files.

use crate::dataset::ListError;
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_model::wire::{Dataset, PACK_IMAGES, Pack, PackedImage, SourceFile};
use gristmill_model::{Fingerprint, Namespace};
use gristmill_pipeline::Source as PipelineSource;
use gristmill_ports::{ObjectInfo, ObjectPath, Objects};
use gristmill_sources::images::{LABEL_KEY, record_bytes};
use std::collections::BTreeSet;

/// Stores images that were found below a directory of `bucket` as packs in `own_bucket`.
pub(crate) async fn pack_images(
    objects: &dyn Objects,
    ns: &Namespace,
    own_bucket: &str,
    source: &PipelineSource,
    (bucket, pattern): (&str, &str),
    found: Vec<ObjectInfo>,
) -> Result<Dataset, ListError> {
    let labelled = source.features.values().any(|feature| feature.key == LABEL_KEY);
    let images = arrange(found, root(pattern), labelled)?;
    let mut files = Vec::new();
    for images in images.chunks(PACK_IMAGES) {
        let size = images.iter().map(|image| image.size).sum();
        let pack = Pack { bucket: bucket.to_owned(), images: images.to_vec() };
        let stored = serde_json::to_vec(&pack).map_err(ListError::Stored)?;
        let fingerprint = Pack::fingerprint(&stored);
        let key = keys::pack(ns, fingerprint);
        // A concurrent writer stores the same bytes: the name is their hash.
        let path = ObjectPath::new(own_bucket, &key);
        objects.put_if_absent(&path, Bytes::from(stored), "pack").await?;
        files.push(SourceFile { key, size, etag: fingerprint.to_string() });
    }
    Ok(Dataset::one(own_bucket, files))
}

/// Labels images, and puts them in an order that has nothing to do with their names: a split then has
/// images of many classes, though those of a class lie together.
fn arrange(
    found: Vec<ObjectInfo>,
    root: &str,
    labelled: bool,
) -> Result<Vec<PackedImage>, ListError> {
    let class = |key: &str| {
        let below = key.strip_prefix(root).unwrap_or(key).trim_start_matches('/');
        below.split_once('/').map(|(class, _)| class.to_owned())
    };
    let classes: BTreeSet<String> = found.iter().filter_map(|info| class(&info.key)).collect();
    let classes: Vec<String> = classes.into_iter().collect();
    let mut images = Vec::with_capacity(found.len());
    for ObjectInfo { key, size, etag } in found {
        record_bytes(size).map_err(|error| ListError::Image(key.clone(), error.to_string()))?;
        let label = class(&key).and_then(|class| classes.binary_search(&class).ok());
        if label.is_none() && labelled {
            let what = "it lies in no directory that names its class; without `label` among the \
                        features it needs none";
            return Err(ListError::Image(key, what.to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Source;
    use gristmill_ports::{CallError, memory::MemoryObjects};
    use std::path::Path;

    const WITH_LABELS: &str =
        "source: { images: x }\nops: [decode, { resize: { size: 8 } }, { batch: { size: 2 } }]";

    async fn pack(keys: &[String], pattern: &str, yaml: &str) -> Result<Vec<Pack>, ListError> {
        let objects = MemoryObjects::default();
        for key in keys {
            let path = ObjectPath::new("data", key);
            objects.put_if_absent(&path, Bytes::from_static(b"x"), key).await.unwrap();
        }
        let pipeline = gristmill_operators::parse(yaml).unwrap();
        let ns = "a".parse().unwrap();
        let source = pipeline.source();
        let data = Source::S3 { bucket: "data".into(), patterns: vec![pattern.to_owned()] };
        let mount = None::<fn(&str, &Path) -> std::future::Ready<Result<(), CallError>>>;
        let dataset = data.list(&objects, &ns, "own", source, mount).await?.dataset;
        assert_eq!(dataset.bucket, "own");
        let mut packs = Vec::new();
        for file in dataset.files {
            let stored = objects.get(&ObjectPath::new("own", &file.key)).await.unwrap();
            let pack: Pack = serde_json::from_slice(&stored).unwrap();
            assert_eq!(file.size, pack.images.len() as u64);
            packs.push(pack);
        }
        Ok(packs)
    }

    fn keys(of: &[&str]) -> Vec<String> {
        of.iter().map(|key| (*key).to_owned()).collect()
    }

    #[tokio::test]
    async fn classes_are_directories_in_byte_order() {
        let keys =
            keys(&["t/dog/1.JPEG", "t/cat/a/2.jpg", "t/cat/3.png", "t/notes.txt", "u/x/4.jpg"]);
        for pattern in ["t", "t/", "t/*/*"] {
            let packs = pack(&keys, pattern, WITH_LABELS).await.unwrap();
            let mut labels: Vec<_> =
                packs[0].images.iter().map(|image| (image.key.as_str(), image.label)).collect();
            labels.sort_unstable();
            let below = [("t/cat/3.png", 0), ("t/cat/a/2.jpg", 0), ("t/dog/1.JPEG", 1)];
            let wanted: Vec<_> = below
                .into_iter()
                .filter(|(key, _)| pattern != "t/*/*" || !key.contains("/a/"))
                .collect();
            assert_eq!(labels, wanted, "{pattern}");
        }
    }

    #[tokio::test]
    async fn images_without_a_class_have_no_label() {
        let keys = keys(&["t/1.jpg", "t/2.jpg"]);
        let error = pack(&keys, "t", WITH_LABELS).await.unwrap_err().to_string();
        assert!(error.contains("t/1.jpg: it lies in no directory"), "{error}");
        let without = WITH_LABELS
            .replace("{ images: x }", "{ images: x, features: { image: { dtype: bytes } } }");
        assert_eq!(pack(&keys, "t", &without).await.unwrap()[0].images.len(), 2);
        let none = pack(&keys, "other", WITH_LABELS).await.unwrap_err().to_string();
        assert_eq!(none, "no file matches s3://data/other");
    }

    #[tokio::test]
    async fn packs_mix_classes_and_are_the_same_each_time() {
        let keys: Vec<_> = (0..1500).map(|i| format!("t/{}/{i}.jpg", i / 500)).collect();
        let packs = pack(&keys, "t", WITH_LABELS).await.unwrap();
        assert_eq!(packs.iter().map(|pack| pack.images.len()).collect::<Vec<_>>(), [1024, 476]);
        for class in 0..3 {
            let of_class = packs[0].images.iter().filter(|image| image.label == class).count();
            assert!((250..430).contains(&of_class), "{class}: {of_class}");
        }
        assert_eq!(pack(&keys, "t", WITH_LABELS).await.unwrap(), packs);
    }
}

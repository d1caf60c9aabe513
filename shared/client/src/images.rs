//! Folders of images as datasets: stored packs replace the files.

use crate::{DatasetListing, LeftOutFiles, ListError};
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_model::wire::{Dataset, ImagePack, SourceFile};
use gristmill_pipeline::PipelineSource;
use gristmill_ports::{ObjectInfo, ObjectPath};
use gristmill_runner::IndexStore;
use gristmill_sources::images::{BadImage, ImageFolder, ImagePacks, packs};

/// Stores `packs` beside the service's other objects.
pub(crate) async fn store_packs(
    store: &IndexStore<'_>,
    ImagePacks { packs, empty }: ImagePacks,
) -> Result<DatasetListing, ListError> {
    let mut files = Vec::new();
    for pack in packs {
        let size = pack.images.iter().map(|image| image.size).sum();
        let stored = serde_json::to_vec(&pack).map_err(ListError::Stored)?;
        let fingerprint = ImagePack::fingerprint(&stored);
        let key = keys::pack(store.ns, fingerprint);
        // A concurrent writer stores the same bytes: the name is their hash.
        let path = ObjectPath::new(store.bucket, &key);
        store.objects.put_if_absent(&path, Bytes::from(stored), "pack").await?;
        files.push(SourceFile::new(key, size, fingerprint.to_string()));
    }
    let left_out = LeftOutFiles::from_empty_classes(empty);
    Ok(DatasetListing { dataset: Dataset::one(store.bucket, files), left_out })
}

/// The packs that the images `files` of `bucket` make, which `pattern` names, after a search of `directories`.
pub(crate) fn found_packs(
    source: &PipelineSource,
    bucket: &str,
    pattern: &str,
    files: &[ObjectInfo],
    directories: Vec<String>,
) -> Result<ImagePacks, ListError> {
    let file = |ObjectInfo { key, size, etag }: &ObjectInfo| {
        SourceFile::new(key.clone(), *size, etag.clone())
    };
    let images = files.iter().map(file).collect();
    packs(bucket, pattern, source, ImageFolder { images, directories })
        .map_err(|BadImage { key, why }| ListError::Image(key, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetLocation;
    use gristmill_ports::{CallError, ObjectStore as _, memory::MemoryObjects};
    use std::path::Path;

    const WITH_LABELS: &str =
        "source: { images: x }\nops: [decode, { resize: { size: 8 } }, { batch: { size: 2 } }]";

    async fn pack(keys: &[String], pattern: &str, yaml: &str) -> Result<Vec<ImagePack>, ListError> {
        let objects = MemoryObjects::default();
        for key in keys {
            let path = ObjectPath::new("data", key);
            objects.put_if_absent(&path, Bytes::from_static(b"x"), key).await.unwrap();
        }
        let pipeline = gristmill_operators::parse(yaml).unwrap();
        let (ns, source) = ("a".parse().unwrap(), pipeline.source());
        let (compute, bucket) = (gristmill_runner::ComputeMode::default(), "own");
        let indices = IndexStore { objects: &objects, compute, ns: &ns, bucket };
        let data = DatasetLocation::parse(&format!("s3://data/{pattern}"), "".as_ref()).unwrap();
        let mount = None::<fn(&str, &Path) -> std::future::Ready<Result<(), CallError>>>;
        let dataset = data.list(&indices, source, mount).await?.dataset;
        assert_eq!(dataset.bucket, "own");
        let mut packs = Vec::new();
        for file in dataset.files {
            let stored = objects.get(&ObjectPath::new("own", &file.key)).await.unwrap();
            let pack: ImagePack = serde_json::from_slice(&stored).unwrap();
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

    /// The labels of `val` by file, and the message.
    fn labels_of(val: &[&str], directories: &[&str], classes: &str) -> Result<String, String> {
        let yaml = WITH_LABELS.replace("images: x", &format!("images: x{classes}"));
        let pipeline = gristmill_operators::parse(&yaml).unwrap();
        let images = val.iter().map(|key| SourceFile::new((*key).to_owned(), 1, "e")).collect();
        let directories = keys(directories);
        let found = ImageFolder { images, directories };
        let packed =
            packs("data", "val", pipeline.source(), found).map_err(|bad| bad.to_string())?;
        let images = packed.packs.iter().flat_map(|pack| &pack.images);
        let mut labels: Vec<_> =
            images.map(|image| format!("{} {}", image.key, image.label)).collect();
        labels.sort_unstable();
        Ok(format!("{}; {}", labels.join(", "), LeftOutFiles::from_empty_classes(packed.empty)))
    }

    #[test]
    fn a_class_without_an_image_keeps_its_label_and_is_named() {
        let val = ["val/ant/1.jpg", "val/cat/1.jpg"];
        let found = |directories: &[&str], classes: &str| labels_of(&val, directories, classes);
        let kept = "val/ant/1.jpg 0, val/cat/1.jpg 2; no image in 1 class: bee (label 1)";
        assert_eq!(found(&["val/bee/", "val/", "val/ant/", "above/"], "").unwrap(), kept);
        assert_eq!(found(&[], ", classes: [ant, bee, cat]").unwrap(), kept);
        assert_eq!(
            found(&["val/dog/"], ", classes: [cat, ant]").unwrap(),
            "val/ant/1.jpg 1, val/cat/1.jpg 0; "
        );
        let why = found(&[], ", classes: [ant]").unwrap_err();
        assert_eq!(why, "val/cat/1.jpg: `classes` does not name its class `cat`");
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

//! Datasets: the sources that users name, and the files that jobs read, pinned by size and etag.

use crate::{
    needs_aws,
    selection::{
        BRACE_MARK, LeftOutFiles, LocationListing, PathSelector, WILD, enters, select,
        shared_prefix, shown,
    },
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_host::folder::FolderEntry;
use gristmill_model::{
    Fingerprint,
    stored::keys,
    wire::{Dataset, ImagePack, SourceFile, ZipFileCounts},
};
use gristmill_pipeline::PipelineSource;
use gristmill_ports::{CallError, ObjectError, ObjectInfo, ObjectPath, ObjectStore};
use gristmill_runner::IndexStore;
use gristmill_sources::{
    FormatDefinition,
    images::{BadImage, ImageFolder, ImagePacks, packs},
};
use gristmill_stream::FolderBuckets;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Concurrent requests for files of a web server.
const LOOKS_AT_ONCE: usize = 16;

/// The location of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetLocation {
    place: Place,
    patterns: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A bucket of S3.
    S3(String),
    /// An existing directory of this machine.
    Local(PathBuf),
    /// One web server, `https://host`; servers have no lists, so only braces are patterns.
    Web(String),
}

impl std::fmt::Display for DatasetLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.place();
        for (i, pattern) in self.patterns.iter().enumerate() {
            let between = if i == 0 { "" } else { ", " };
            write!(f, "{between}{}", shown(&place, pattern))?;
        }
        Ok(())
    }
}

impl DatasetLocation {
    /// The files of the directory `root` of this machine that `pattern`, relative to it, names.
    pub fn local(root: PathBuf, pattern: impl Into<String>) -> Self {
        Self { place: Place::Local(root), patterns: vec![pattern.into()] }
    }

    /// The place as users name it, without a slash at its end.
    fn place(&self) -> String {
        let place = match &self.place {
            Place::S3(bucket) => format!("s3://{bucket}"),
            Place::Local(root) => root.display().to_string(),
            Place::Web(origin) => origin.clone(),
        };
        place.trim_end_matches('/').to_owned()
    }

    /// Parses several sources, all in one bucket or on this machine, into one with their files in order.
    pub fn parse_all(texts: &[String], base: &Path) -> io::Result<Self> {
        let mut sources = texts.iter().map(|text| Self::parse(text, base));
        let first = sources.next().unwrap_or_else(|| Self::parse("", base))?;
        sources.try_fold(first, |before, source| before.followed_by(source?))
    }

    /// Lists the files that `source` reads, and makes them readable by workers: if functions run on this
    /// machine, `mount` turns a local directory into a bucket (its arguments are the bucket's name and the
    /// directory). Packs of images are stored beside the `indices`.
    pub async fn list(
        self,
        indices: &IndexStore<'_>,
        source: &PipelineSource,
        mount: Option<impl AsyncFn(&str, &Path) -> Result<(), CallError>>,
    ) -> Result<DatasetListing, ListError> {
        if let (Place::Local(root), None) = (&self.place, &mount) {
            return Err(ListError::OutOfReach(root.clone()));
        }
        let found = self.find(indices.objects, source).await?;
        if let (Place::Local(root), Some(mount)) = (&self.place, mount) {
            mount(&found.bucket, root).await?;
        }
        let DatasetFiles { bucket, members, directories, mut left_out } = found;
        let dataset = match members.as_slice() {
            [images] if source.format.definition().is_packed => {
                let pattern = &self.patterns[0];
                let packs = found_packs(source, &bucket, pattern, images, directories)?;
                let packed = store_packs(indices, packs).await?;
                left_out.join(packed.left_out);
                packed.dataset
            }
            _ => {
                let mut files = Vec::with_capacity(members.len());
                for (found, member) in members.into_iter().zip(source.members()) {
                    files.push(indices.as_they_are(&member.format, &bucket, found).await?);
                }
                dataset_of(bucket, files)
            }
        };
        Ok(DatasetListing { dataset, left_out })
    }

    /// Finds the files that `source` reads, pattern by pattern: a key, a directory, or a glob of `*`, `?`,
    /// `[..]` and braces. The patterns of zipped datasets follow each other, as many per dataset as it has
    /// paths.
    pub async fn find(
        &self,
        objects: &dyn ObjectStore,
        source: &PipelineSource,
    ) -> Result<DatasetFiles, ListError> {
        let (place, patterns) = (self.place(), &*self.patterns);
        let bucket = match &self.place {
            Place::S3(bucket) | Place::Web(bucket) => bucket.clone(),
            Place::Local(root) => mount_name(root),
        };
        if source.format.definition().is_packed && matches!(self.place, Place::Web(_)) {
            return Err(ListError::NoList(place));
        }
        if source.format.definition().is_packed && !source.is_zip() && patterns.len() != 1 {
            return Err(ListError::Folders(patterns.len()));
        }
        let (mut members, mut directories) = (Vec::new(), Vec::new());
        let mut left_out = LeftOutFiles::default();
        for (patterns, member) in patterns_of(source, patterns)?.into_iter().zip(source.members()) {
            let mut files = Vec::new();
            for pattern in patterns {
                let selectors = match self.place {
                    Place::Web(_) => PathSelector::files(pattern)?,
                    _ => PathSelector::all(pattern)?,
                };
                let there = self.there(objects, &selectors, member.format.definition()).await?;
                let (read, left) = select(&selectors, member.format.definition(), &there, &place)?;
                files.extend(read);
                directories.extend(there.directories);
                left_out.join(left);
            }
            members.push(files);
        }
        Ok(DatasetFiles { bucket, members, directories, left_out })
    }

    /// The first pack of the folder of images that [`find`](Self::find) has found.
    ///
    /// # Errors
    /// An image is too large, or lies in no class.
    pub fn first_pack(
        &self,
        found: &DatasetFiles,
        source: &PipelineSource,
    ) -> Result<Option<ImagePack>, ListError> {
        let [files] = found.members.as_slice() else { return Ok(None) };
        let directories = found.directories.clone();
        let packs = found_packs(source, &found.bucket, &self.patterns[0], files, directories)?;
        Ok(packs.packs.into_iter().next())
    }

    /// The local path of a file of [`DatasetFiles`]; none if it is not on this machine.
    pub fn path_of(&self, key: &str) -> Option<PathBuf> {
        match &self.place {
            Place::S3(_) | Place::Web(_) => None,
            Place::Local(root) => Some(root.join(key)),
        }
    }

    /// Lists the files that `selectors` choose from.
    async fn there(
        &self,
        objects: &dyn ObjectStore,
        selectors: &[PathSelector],
        format: &FormatDefinition,
    ) -> Result<LocationListing, ListError> {
        let prefix = shared_prefix(selectors);
        match &self.place {
            Place::S3(bucket) => {
                let files = objects.list(bucket, prefix).await?;
                Ok(LocationListing { files, ..LocationListing::default() })
            }
            Place::Web(origin) => {
                let looks = selectors.iter().map(|selector| objects.list(origin, selector.text()));
                let found = stream::iter(looks).buffered(LOOKS_AT_ONCE).try_concat().await?;
                Ok(LocationListing { files: found, ..LocationListing::default() })
            }
            // Blocks on the disk; no other task runs meanwhile.
            Place::Local(root) => walk(root, prefix, selectors, format),
        }
    }

    fn followed_by(self, other: Self) -> io::Result<Self> {
        match (self.place, other.place) {
            (Place::Local(root), Place::Local(other_root)) => {
                let shared = root.components().zip(other_root.components());
                let shared = shared.take_while(|(a, b)| a == b).map(|(part, _)| part).collect();
                let mut patterns = below(&shared, &root, self.patterns)?;
                patterns.extend(below(&shared, &other_root, other.patterns)?);
                Ok(Self { place: Place::Local(shared), patterns })
            }
            (place, same) if place == same => {
                Ok(Self { place, patterns: [self.patterns, other.patterns].concat() })
            }
            _ => Err(io::Error::other(
                "a dataset must be in one bucket, on one web server, or on this machine: copy its \
                 files to one place",
            )),
        }
    }

    /// Reads `text`: `s3://bucket/pattern`, `https://host/file`, or a path or glob relative to `base`.
    ///
    /// # Errors
    /// A local path that is not there, an S3 address without a bucket, or an address with a password.
    pub fn parse(text: &str, base: &Path) -> io::Result<Self> {
        if text.is_empty() {
            return Err(io::Error::other(
                "the dataset has no name: give a path or s3://bucket/prefix",
            ));
        }
        if let Some(address) = text.strip_prefix("s3://") {
            let (bucket, pattern) = address.split_once('/').unwrap_or((address, ""));
            if bucket.is_empty() {
                return Err(io::Error::other(format!("{text} names no bucket")));
            }
            needs_aws(text).map_err(|refusal| io::Error::other(refusal.to_string()))?;
            let place = Place::S3(bucket.to_owned());
            return Ok(Self { place, patterns: vec![pattern.to_owned()] });
        }
        if let Some(address) = gristmill_web::origin_and_key(text) {
            let (origin, pattern) = address.map_err(io::Error::other)?;
            return Ok(Self { place: Place::Web(origin), patterns: vec![pattern] });
        }
        if let Some((scheme, _)) = text.split_once("://")
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !base.join(text).exists()
        {
            // The rest of the address may have a password.
            return Err(io::Error::other(format!(
                "{scheme}:// is not read: give a path, s3://bucket/prefix or https://host/file"
            )));
        }
        let missing = |path: &Path, error: io::Error| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let from = if text.starts_with('/') {
                ""
            } else {
                " (a path in a pipeline is relative to the pipeline's file, `--data` to the \
                     current directory)"
            };
            io::Error::other(format!("cannot read dataset {}: {error}{from}", path.display()))
        };
        // The root ends before the first component with a wildcard, unless a file has exactly that name.
        let parts: Vec<&str> = text.split('/').collect();
        let is_name = text.contains(WILD) && base.join(text).exists();
        let is_fixed =
            |part: &&&str| is_name || !(part.contains(WILD) || part.contains(BRACE_MARK));
        let fixed = parts.iter().take_while(is_fixed).count();
        let path = base.join(parts[..fixed].join("/"));
        let path = if text.starts_with('/') && fixed <= 1 { PathBuf::from("/") } else { path };
        let found = fs::canonicalize(&path).map_err(|error| missing(&path, error))?;
        if fixed < parts.len() {
            return Ok(Self::local(found, parts[fixed..].join("/")));
        }
        if found.is_dir() {
            return Ok(Self::local(found, ""));
        }
        let name = found.file_name().and_then(|name| name.to_str());
        match (found.parent(), name) {
            (Some(root), Some(name)) => Ok(Self::local(root.to_owned(), literal(name))),
            (Some(_), None) => {
                Err(missing(&path, io::Error::other("its name is not UTF-8: rename it")))
            }
            _ => Err(missing(&path, io::Error::other("it is not a file or directory"))),
        }
    }

    /// The folder of this machine that holds the dataset, if any.
    pub fn folders(&self) -> FolderBuckets {
        match &self.place {
            Place::S3(_) | Place::Web(_) => FolderBuckets::default(),
            Place::Local(root) => FolderBuckets::new([(mount_name(root), root.clone())]),
        }
    }
}

/// Converts patterns relative to `root` to patterns relative to its ancestor `shared`.
fn below(shared: &PathBuf, root: &Path, patterns: Vec<String>) -> io::Result<Vec<String>> {
    let rest = root.strip_prefix(shared).map_err(io::Error::other)?;
    let rest = rest.to_str().ok_or_else(|| io::Error::other("a path is not valid UTF-8"))?;
    let joined = |pattern: String| match (rest, pattern.as_str()) {
        ("", _) => pattern,
        (_, "") => rest.to_owned(),
        _ => format!("{rest}/{pattern}"),
    };
    Ok(patterns.into_iter().map(joined).collect())
}

/// The bucket name under which a local directory is mounted. Equal directories get equal names, so a
/// dataset keeps its version.
fn mount_name(root: &Path) -> String {
    keys::mount(Fingerprint::from_content(
        "gristmill mount v1",
        root.as_os_str().as_encoded_bytes(),
    ))
}

/// A pattern that matches only `name`.
fn literal(name: &str) -> String {
    let special = |c: char| WILD.contains(&c) || c == BRACE_MARK;
    name.chars().map(|c| if special(c) { format!("[{c}]") } else { c.to_string() }).collect()
}

/// Lists the files of a local directory that `selectors` may read.
fn walk(
    root: &Path,
    prefix: &str,
    selectors: &[PathSelector],
    format: &FormatDefinition,
) -> Result<LocationListing, ListError> {
    let mut there = LocationListing::default();
    let walked = gristmill_host::folder::walk(root, prefix, &mut |entry| {
        match entry {
            FolderEntry::File(file) => there.files.push(ObjectInfo {
                key: file.key.to_owned(),
                size: file.metadata.len(),
                etag: format!("\"{}\"", gristmill_host::folder::etag(file.metadata)),
            }),
            FolderEntry::Folder(key) => {
                let enter = enters(selectors, key, format);
                if enter {
                    there.directories.push(key.to_owned());
                } else {
                    there.others.push((key.to_owned(), None));
                }
                return enter;
            }
            FolderEntry::Other(key, why) => there.others.push((key.to_owned(), Some(why))),
        }
        true
    });
    walked.map_err(|error| ListError::Unreadable {
        path: root.display().to_string(),
        why: error.to_string(),
    })?;
    there.files.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(there)
}

/// A dataset as a job reads it.
#[derive(Debug, Clone)]
pub struct DatasetListing {
    pub dataset: Dataset,
    pub left_out: LeftOutFiles,
}

/// The files of a dataset.
#[derive(Debug, Clone)]
pub struct DatasetFiles {
    /// Their bucket, for workers.
    pub bucket: String,
    /// Those of each dataset of a zip.
    pub members: Vec<Vec<ObjectInfo>>,
    /// The directories of this machine that were searched for them.
    directories: Vec<String>,
    pub left_out: LeftOutFiles,
}

fn dataset_of(bucket: String, members: Vec<Vec<SourceFile>>) -> Dataset {
    // The coordinator refuses more than u32::MAX files.
    let counts = members.iter().map(|files| u32::try_from(files.len()).unwrap_or(u32::MAX));
    let members_of = ZipFileCounts::new(counts.collect());
    Dataset { bucket, files: members.into_iter().flatten().collect(), members: members_of }
}

fn patterns_of<'a>(
    source: &PipelineSource,
    mut patterns: &'a [String],
) -> Result<Vec<&'a [String]>, ListError> {
    if !source.is_zip() {
        return Ok(vec![patterns]);
    }
    let mut divided = Vec::new();
    for member in source.members() {
        let (own, rest) = patterns.split_at_checked(member.paths.len()).ok_or(ListError::Zipped)?;
        divided.push(own);
        patterns = rest;
    }
    if patterns.is_empty() { Ok(divided) } else { Err(ListError::Zipped) }
}

/// Why a dataset cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("{0} is not a valid pattern: {1}")]
    Pattern(String, String),
    #[error("no file matches {place}{}", because(.left_out))]
    Empty { place: String, left_out: LeftOutFiles },
    #[error("cannot read {path}: {why}")]
    Unreadable { path: String, why: String },
    #[error("{0}: {1}")]
    Image(String, String),
    #[error(
        "an image folder is one directory with a subdirectory per class: name one directory, not \
         {0}"
    )]
    Folders(usize),
    #[error(
        "{0} has no list of its files, which an image folder needs: put the images into tar files, or on S3"
    )]
    NoList(String),
    #[error("the pipeline zips datasets, and its file names their paths: leave out `--data`")]
    Zipped,
    #[error("cannot describe the images: {0}")]
    Stored(serde_json::Error),
    #[error("functions on AWS cannot read {}: copy it to S3 and name s3://bucket/prefix", .0.display())]
    OutOfReach(PathBuf),
    #[error(transparent)]
    Mount(#[from] CallError),
}

impl ListError {
    /// Whether the request is at fault, rather than a service.
    pub fn is_usage(&self) -> bool {
        !matches!(self, ListError::Objects(_) | ListError::Stored(_) | ListError::Mount(_))
    }
}

/// Why a location with files has none to read.
fn because(left_out: &LeftOutFiles) -> String {
    if left_out.is_empty() { String::new() } else { format!(": {left_out}") }
}

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
    use bytes::Bytes;
    use gristmill_ports::ObjectPath;
    use gristmill_ports::memory::MemoryObjects;

    #[test]
    fn messages_name_files_of_this_machine_by_their_path() {
        let source = DatasetLocation::local("/data/set".into(), "");
        let inside = format!("s3://{}/train-0 record 2", mount_name(Path::new("/data/set")));
        let folders = source.folders();
        assert_eq!(folders.in_words(&inside), "/data/set/train-0 record 2");
        assert_eq!(folders.in_words("s3://other/train-0"), "s3://other/train-0");
    }

    const TFRECORD: &str = "source: { tfrecord: x, features: { v: { dtype: i64 } } }\n\
                            ops: [{ batch: { size: 1 } }]";

    fn s3(patterns: &[String]) -> DatasetLocation {
        DatasetLocation { place: Place::S3("b".into()), patterns: patterns.to_vec() }
    }

    async fn bucket(keys: &[&str]) -> MemoryObjects {
        let objects = MemoryObjects::default();
        for key in keys {
            let path = ObjectPath::new("b", *key);
            objects.put_if_absent(&path, Bytes::from_static(b"x"), key).await.unwrap();
        }
        objects
    }

    async fn found(objects: &MemoryObjects, pattern: &str) -> Result<DatasetFiles, ListError> {
        let pipeline = gristmill_operators::parse(TFRECORD).unwrap();
        let source = s3(&[pattern.to_owned()]);
        source.find(objects, pipeline.source()).await
    }

    async fn keys(pattern: &str) -> Result<Vec<String>, ListError> {
        let files =
            ["a/x-1.tfrecord", "a/x-2.tfrecord", "a/manifest.json", "a/.tmp", "ab/x-3.tfrecord"];
        let found = found(&bucket(&files).await, pattern).await?;
        Ok(found.members.concat().into_iter().map(|file| file.key).collect())
    }

    #[tokio::test]
    async fn the_files_of_a_zip_are_those_of_its_datasets() {
        let objects = bucket(&["x/1", "x/2", "y/1", "z/1"]).await;
        let yaml = "source: { zip: [\
                    { tfrecord: [z, x], features: { v: { dtype: i64 } } }, \
                    { jsonl: y, features: { w: { dtype: i64 } } }] }\n\
                    ops: [{ batch: { size: 1 } }]";
        let pipeline = gristmill_operators::parse(yaml).unwrap();
        let (ns, source) = ("a".parse().unwrap(), pipeline.source());
        let (compute, bucket) = (gristmill_runner::ComputeMode::default(), "own");
        let indices = IndexStore { objects: &objects, compute, ns: &ns, bucket, rescues: true };
        let patterns = pipeline.source_paths();
        let list = async |patterns: &[String]| {
            let data = s3(patterns);
            let mount = None::<fn(&str, &Path) -> std::future::Ready<Result<(), CallError>>>;
            data.list(&indices, source, mount).await
        };
        let dataset = list(&patterns).await.unwrap().dataset;
        let keys: Vec<&str> = dataset.files.iter().map(|file| file.key.as_str()).collect();
        assert_eq!(keys, ["z/1", "x/1", "x/2", "y/1"]);
        assert_eq!(dataset.members, ZipFileCounts::new(vec![3, 1]));
        // The same files divided differently are a different dataset.
        let divided = Dataset { members: ZipFileCounts::new(vec![1, 3]), ..dataset.clone() };
        assert_ne!(divided.version("x"), dataset.version("x"));
        for patterns in [&patterns[..1], &patterns[..2]] {
            let error = list(patterns).await;
            assert!(matches!(error, Err(ListError::Zipped)), "{error:?}");
        }
    }

    #[test]
    fn sources_are_files_directories_globs_and_buckets() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("data")).unwrap();
        fs::write(root.join("data/x.tfrecord"), "x").unwrap();
        let local = |root: PathBuf, pattern: &str| DatasetLocation::local(root, pattern);
        let parse = |text: &str| DatasetLocation::parse(text, &root).unwrap();
        assert_eq!(parse("data"), local(root.join("data"), ""));
        assert_eq!(parse("data/x.tfrecord"), local(root.join("data"), "x.tfrecord"));
        assert_eq!(parse("data/x-*.tfrecord"), local(root.join("data"), "x-*.tfrecord"));
        assert_eq!(parse("*/x-*"), local(root.clone(), "*/x-*"));
        let absolute = root.join("data").display().to_string();
        assert_eq!(parse(&absolute), local(root.join("data"), ""));
        assert_eq!(parse("s3://b/p/*"), s3(&["p/*".into()]));
        fs::create_dir_all(root.join("more/deep")).unwrap();
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            DatasetLocation::parse_all(&texts, &root)
        };
        let patterns = ["data/x-*", "more/deep", "data"].map(str::to_owned).to_vec();
        let several = parse(&["data/x-*", "more/deep", "data"]).unwrap();
        assert_eq!(several, DatasetLocation { place: Place::Local(root.clone()), patterns });
        assert!(parse(&["data", "s3://b/x"]).is_err() && parse(&["s3://a/x", "s3://b/x"]).is_err());
        let both = s3(&["x".into(), "y/*".into()]);
        assert_eq!(parse(&["s3://b/x", "s3://b/y/*"]).unwrap(), both);
        let missing = DatasetLocation::parse("nothing/here", &root).unwrap_err().to_string();
        assert!(missing.contains("nothing/here"), "{missing}");
        for other in ["gs://b/k", "file:///a", "S3://b/k"] {
            let why = DatasetLocation::parse(other, &root).unwrap_err().to_string();
            assert!(why.contains(":// is not read: give a path, s3://"), "{why}");
        }
        assert!(
            DatasetLocation::parse("s3:///x", &root).is_err()
                && DatasetLocation::parse("", &root).is_err()
        );
    }

    #[tokio::test]
    async fn patterns_name_files_directories_and_globs() {
        assert_eq!(keys("a").await.unwrap(), ["a/x-1.tfrecord", "a/x-2.tfrecord"]);
        assert_eq!(keys("a/").await.unwrap(), ["a/x-1.tfrecord", "a/x-2.tfrecord"]);
        assert_eq!(keys("a/x-2.tfrecord").await.unwrap(), ["a/x-2.tfrecord"]);
        assert_eq!(
            keys("a*/x-[23].tfrecord").await.unwrap(),
            ["a/x-2.tfrecord", "ab/x-3.tfrecord"]
        );
        assert_eq!(keys("").await.unwrap().len(), 3);
        let none = keys("c/*.tfrecord").await.unwrap_err();
        assert_eq!(none.to_string(), "no file matches s3://b/c/*.tfrecord");
    }
}

#[cfg(test)]
mod images_tests {
    use super::*;
    use crate::dataset::DatasetLocation;
    use gristmill_ports::{CallError, memory::MemoryObjects};
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
        let indices = IndexStore { objects: &objects, compute, ns: &ns, bucket, rescues: true };
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

//! Datasets as people name them, and as jobs read them: files pinned by size and etag.

use crate::images::pack_images;
use gristmill_pipeline::{Format, Source as PipelineSource};
use gristmill_ports::{CallError, ObjectError, ObjectInfo, Objects};
use gristmill_protocol::{Dataset, MAX_MESSAGE_BYTES, Members, SourceFile};
use gristmill_types::{Fingerprint, Namespace};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What makes a pattern of a path.
const WILD: [char; 3] = ['*', '?', '['];

/// Largest list of files: a registration carries it, beside a pipeline.
const MAX_LISTED_BYTES: usize = MAX_MESSAGE_BYTES / 6 * 5;
/// Bytes of a file in that list beside its key and tag.
const FILE_OVERHEAD_BYTES: usize = 48;

/// Where a dataset is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    S3 {
        bucket: String,
        patterns: Vec<String>,
    },
    /// On this machine: `patterns` are relative to `root`, a directory that exists.
    Local {
        root: PathBuf,
        patterns: Vec<String>,
    },
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (place, patterns) = match self {
            Self::S3 { bucket, patterns } => (format!("s3://{bucket}"), patterns),
            Self::Local { root, patterns } => (root.display().to_string(), patterns),
        };
        let place = place.trim_end_matches('/');
        for (i, pattern) in patterns.iter().enumerate() {
            let between = if i == 0 { "" } else { ", " };
            write!(f, "{between}{place}/{pattern}")?;
        }
        Ok(())
    }
}

impl Source {
    /// Reads several places, whose files follow each other.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or if they are not all in one bucket or on this machine.
    pub fn parse_all(texts: &[String], base: &Path) -> io::Result<Self> {
        let mut sources = texts.iter().map(|text| Self::parse(text, base));
        let first = sources.next().unwrap_or_else(|| Self::parse("", base))?;
        sources.try_fold(first, |before, source| before.followed_by(source?))
    }

    /// Lists what `source` reads of it, once workers can: a directory of this machine becomes a bucket by `mount` (a name
    /// for it, and the directory), where functions run here. Images are described in `own_bucket`.
    ///
    /// # Errors
    /// If it is on this machine and the functions are not, nothing is found, or a service does not answer.
    pub async fn list(
        self,
        objects: &dyn Objects,
        ns: &Namespace,
        own_bucket: &str,
        source: &PipelineSource,
        mount: Option<impl AsyncFn(&str, &Path) -> Result<(), CallError>>,
    ) -> Result<Dataset, ListError> {
        let (bucket, patterns) = match self {
            Self::S3 { bucket, patterns } => (bucket, patterns),
            Self::Local { root, patterns } => {
                let Some(mount) = mount else { return Err(ListError::OutOfReach(root)) };
                let bucket = mount_name(&root);
                mount(&bucket, &root).await?;
                (bucket, patterns)
            }
        };
        list_dataset(objects, ns, own_bucket, source, (&bucket, &patterns)).await
    }

    fn followed_by(self, other: Self) -> io::Result<Self> {
        match (self, other) {
            (Self::S3 { bucket, mut patterns }, Self::S3 { bucket: other, patterns: more })
                if bucket == other =>
            {
                patterns.extend(more);
                Ok(Self::S3 { bucket, patterns })
            }
            (Self::Local { root, patterns }, Self::Local { root: other, patterns: more }) => {
                let shared = root.components().zip(other.components());
                let shared = shared.take_while(|(a, b)| a == b).map(|(part, _)| part).collect();
                let mut all = below(&shared, &root, patterns)?;
                all.extend(below(&shared, &other, more)?);
                Ok(Self::Local { root: shared, patterns: all })
            }
            _ => Err(io::Error::other(
                "a dataset lies in one bucket, or on this machine: copy its files to one place",
            )),
        }
    }

    /// Reads `text`: `s3://bucket/pattern`, or a path or glob relative to `base`.
    ///
    /// # Errors
    /// A local path that is not there, or an S3 address without a bucket.
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
            return Ok(Self::S3 { bucket: bucket.to_owned(), patterns: vec![pattern.to_owned()] });
        }
        let missing = |path: &Path, error: io::Error| {
            io::Error::other(format!("cannot read dataset {}: {error}", path.display()))
        };
        // The root ends before the first component with a wildcard.
        let parts: Vec<&str> = text.split('/').collect();
        let fixed = parts.iter().take_while(|part| !part.contains(WILD)).count();
        let path = base.join(parts[..fixed].join("/"));
        let path = if text.starts_with('/') && fixed <= 1 { PathBuf::from("/") } else { path };
        let found = fs::canonicalize(&path).map_err(|error| missing(&path, error))?;
        if fixed < parts.len() {
            return Ok(Self::Local { root: found, patterns: vec![parts[fixed..].join("/")] });
        }
        if found.is_dir() {
            return Ok(Self::Local { root: found, patterns: vec![String::new()] });
        }
        let name = found.file_name().and_then(|name| name.to_str());
        match (found.parent(), name) {
            (Some(root), Some(name)) => {
                Ok(Self::Local { root: root.to_owned(), patterns: vec![name.to_owned()] })
            }
            _ => Err(missing(&path, io::Error::other("it is no file or directory"))),
        }
    }

    /// `message` with the paths its reader knows: files of this machine go by a bucket's name inside.
    pub fn in_words(&self, message: &str) -> String {
        match self {
            Self::S3 { .. } => message.to_owned(),
            Self::Local { root, .. } => {
                let inside = format!("s3://{}", mount_name(root));
                message.replace(&inside, root.to_string_lossy().trim_end_matches('/'))
            }
        }
    }
}

/// Patterns relative to `root` as they are relative to `shared`, which holds it.
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

/// The bucket under which a directory of this machine is mounted: the same for the same directory,
/// so that a dataset keeps its version.
fn mount_name(root: &Path) -> String {
    let fingerprint = Fingerprint::of("gristmill mount v1", root.as_os_str().as_encoded_bytes());
    format!("dir-{}", &fingerprint.to_string()[..24])
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("{0} is not a valid pattern: {1}")]
    Pattern(String, glob::PatternError),
    #[error("no file matches s3://{bucket}/{pattern}")]
    Empty { bucket: String, pattern: String },
    #[error("{0}: {1}")]
    Image(String, String),
    #[error(
        "s3://{bucket}/{pattern} has {files} files, more than a job can be told of: join them into \
         fewer, larger ones, or name some of them"
    )]
    TooMany { bucket: String, pattern: String, files: usize },
    #[error("an image folder is one directory, whose directories are classes; name one, not {0}")]
    Folders(usize),
    #[error("the pipeline zips datasets, whose paths stand in its file: leave out `--data`")]
    Zipped,
    #[error("cannot describe the images: {0}")]
    Stored(serde_json::Error),
    #[error("functions on AWS cannot read {}: copy it to S3 and name s3://bucket/prefix", .0.display())]
    OutOfReach(PathBuf),
    #[error(transparent)]
    Mount(#[from] CallError),
}

impl ListError {
    /// Whether what was asked for is at fault, rather than who was asked.
    pub fn is_usage(&self) -> bool {
        !matches!(self, ListError::Objects(_) | ListError::Stored(_) | ListError::Mount(_))
    }
}

/// Lists what `source` reads from `bucket`, pattern after pattern: a key, a prefix (a directory, with
/// or without its slash), or a glob of `*`, `?` and `[..]`. Hidden files are left out. Images are described in `own_bucket`.
/// Of zipped datasets the patterns are those of the first, then those of the next, as many as its paths.
///
/// # Errors
/// If nothing is found, or the object store does not answer.
async fn list_dataset(
    objects: &dyn Objects,
    ns: &Namespace,
    own_bucket: &str,
    source: &PipelineSource,
    (bucket, patterns): (&str, &[String]),
) -> Result<Dataset, ListError> {
    if source.format == Format::Images && !source.is_zip() {
        let [pattern] = patterns else { return Err(ListError::Folders(patterns.len())) };
        return pack_images(objects, ns, own_bucket, source, (bucket, pattern)).await;
    }
    let mut files = Vec::new();
    let mut counts = Vec::new();
    for patterns in patterns_of(source, patterns)? {
        let before = files.len();
        for pattern in patterns {
            files.extend(list_shards(objects, bucket, pattern).await?);
        }
        // A message carries fewer than this many.
        counts.push(u32::try_from(files.len() - before).unwrap_or(u32::MAX));
    }
    let listed_bytes: usize =
        files.iter().map(|file| file.key.len() + file.etag.len() + FILE_OVERHEAD_BYTES).sum();
    if listed_bytes > MAX_LISTED_BYTES {
        let (bucket, pattern) = (bucket.to_owned(), patterns.join(", "));
        return Err(ListError::TooMany { bucket, pattern, files: files.len() });
    }
    Ok(Dataset { bucket: bucket.to_owned(), files, members: Members::of(counts) })
}

/// The patterns of each dataset.
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

/// Lists the files of records that match `pattern`, of which there is at least one.
async fn list_shards(
    objects: &dyn Objects,
    bucket: &str,
    pattern: &str,
) -> Result<Vec<SourceFile>, ListError> {
    let is_glob = pattern.contains(WILD);
    let listed = list_files(objects, bucket, pattern).await?;
    // A directory of shards may hold notes about itself.
    let listed = listed.into_iter().filter(|info| is_glob || !info.key.ends_with(".json"));
    let files: Vec<SourceFile> =
        listed.map(|info| SourceFile { key: info.key, size: info.size, etag: info.etag }).collect();
    match files.is_empty() {
        false => Ok(files),
        true => Err(ListError::Empty { bucket: bucket.to_owned(), pattern: pattern.to_owned() }),
    }
}

/// Lists the files of `bucket` that match `pattern` and are not hidden, in key order.
pub(crate) async fn list_files(
    objects: &dyn Objects,
    bucket: &str,
    pattern: &str,
) -> Result<Vec<ObjectInfo>, ListError> {
    let wild = pattern.find(WILD);
    let prefix = &pattern[..wild.unwrap_or(pattern.len())];
    let glob = wild.map(|_| glob::Pattern::new(pattern)).transpose();
    let glob = glob.map_err(|error| ListError::Pattern(pattern.to_owned(), error))?;
    let options = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
    let wanted = |key: &str| match &glob {
        Some(glob) => glob.matches_with(key, options),
        None => {
            let rest = key.strip_prefix(prefix);
            rest.is_some_and(|r| {
                prefix.is_empty() || prefix.ends_with('/') || r.is_empty() || r.starts_with('/')
            })
        }
    };
    let hidden = |key: &str| {
        key.rsplit('/').next().is_none_or(|n| n.is_empty() || n.starts_with(['.', '_']))
    };
    let mut listed = objects.list(bucket, prefix).await?;
    listed.retain(|info| wanted(&info.key) && !hidden(&info.key));
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use gristmill_ports::{ObjectPath, memory::MemoryObjects};

    #[test]
    fn messages_name_files_of_this_machine_by_their_path() {
        let source = Source::Local { root: "/data/set".into(), patterns: Vec::new() };
        let inside = format!("s3://{}/train-0 record 2", mount_name(Path::new("/data/set")));
        assert_eq!(source.in_words(&inside), "/data/set/train-0 record 2");
        assert_eq!(source.in_words("s3://other/train-0"), "s3://other/train-0");
    }

    async fn keys(pattern: &str) -> Result<Vec<String>, ListError> {
        let objects = MemoryObjects::default();
        for key in
            ["a/x-1.tfrecord", "a/x-2.tfrecord", "a/manifest.json", "a/.tmp", "ab/x-3.tfrecord"]
        {
            let path = ObjectPath::new("b", key);
            objects.put_if_absent(&path, Bytes::from_static(b"x"), key).await.unwrap();
        }
        let yaml = "source: { tfrecord: x, features: { v: { dtype: i64 } } }\n\
                    ops: [{ batch: { size: 1 } }]";
        let pipeline = gristmill_pipeline::Pipeline::parse(yaml).unwrap();
        let (ns, source) = ("a".parse().unwrap(), pipeline.source());
        let dataset =
            list_dataset(&objects, &ns, "own", source, ("b", &[pattern.to_owned()])).await?;
        Ok(dataset.files.into_iter().map(|file| file.key).collect())
    }

    #[tokio::test]
    async fn the_files_of_a_zip_are_those_of_its_datasets() {
        let objects = MemoryObjects::default();
        for key in ["x/1", "x/2", "y/1", "z/1"] {
            let path = ObjectPath::new("b", key);
            objects.put_if_absent(&path, Bytes::from_static(b"x"), key).await.unwrap();
        }
        let yaml = "source: { zip: [\
                    { tfrecord: [z, x], features: { v: { dtype: i64 } } }, \
                    { jsonl: y, features: { w: { dtype: i64 } } }] }\n\
                    ops: [{ batch: { size: 1 } }]";
        let pipeline = gristmill_pipeline::Pipeline::parse(yaml).unwrap();
        let (ns, source) = ("a".parse().unwrap(), pipeline.source());
        let patterns = pipeline.source_paths();
        let dataset = list_dataset(&objects, &ns, "own", source, ("b", &patterns)).await.unwrap();
        let keys: Vec<&str> = dataset.files.iter().map(|file| file.key.as_str()).collect();
        assert_eq!(keys, ["z/1", "x/1", "x/2", "y/1"]);
        assert_eq!(dataset.members, Members::of(vec![3, 1]));
        // Other datasets of the same files are another dataset.
        let divided = Dataset { members: Members::of(vec![1, 3]), ..dataset.clone() };
        assert_ne!(divided.version("x"), dataset.version("x"));
        for patterns in [&patterns[..1], &patterns[..2]] {
            let error = list_dataset(&objects, &ns, "own", source, ("b", patterns)).await;
            assert!(matches!(error, Err(ListError::Zipped)), "{error:?}");
        }
    }

    #[test]
    fn sources_are_files_directories_globs_and_buckets() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("data")).unwrap();
        fs::write(root.join("data/x.tfrecord"), "x").unwrap();
        let local =
            |root: PathBuf, pattern: &str| Source::Local { root, patterns: vec![pattern.into()] };
        let parse = |text: &str| Source::parse(text, &root).unwrap();
        assert_eq!(parse("data"), local(root.join("data"), ""));
        assert_eq!(parse("data/x.tfrecord"), local(root.join("data"), "x.tfrecord"));
        assert_eq!(parse("data/x-*.tfrecord"), local(root.join("data"), "x-*.tfrecord"));
        assert_eq!(parse("*/x-*"), local(root.clone(), "*/x-*"));
        let absolute = root.join("data").display().to_string();
        assert_eq!(parse(&absolute), local(root.join("data"), ""));
        let s3 = Source::S3 { bucket: "b".into(), patterns: vec!["p/*".into()] };
        assert_eq!(parse("s3://b/p/*"), s3);
        fs::create_dir_all(root.join("more/deep")).unwrap();
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Source::parse_all(&texts, &root)
        };
        let patterns = ["data/x-*", "more/deep", "data"].map(str::to_owned).to_vec();
        let several = parse(&["data/x-*", "more/deep", "data"]).unwrap();
        assert_eq!(several, Source::Local { root: root.clone(), patterns });
        assert!(parse(&["data", "s3://b/x"]).is_err() && parse(&["s3://a/x", "s3://b/x"]).is_err());
        let patterns = vec!["x".into(), "y/*".into()];
        let s3 = Source::S3 { bucket: "b".into(), patterns };
        assert_eq!(parse(&["s3://b/x", "s3://b/y/*"]).unwrap(), s3);
        let missing = Source::parse("nothing/here", &root).unwrap_err().to_string();
        assert!(missing.contains("nothing/here"), "{missing}");
        assert!(Source::parse("s3:///x", &root).is_err() && Source::parse("", &root).is_err());
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

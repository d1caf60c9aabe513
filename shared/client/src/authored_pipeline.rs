//! A pipeline as its author wrote it, and the asset files of its operators: read relative to the pipeline's
//! file, and stored for workers by their content.

use bytes::Bytes;
use gristmill_executor::NUMERICS;
use gristmill_host::folder::FolderEntry;
use gristmill_model::stored::keys;
use gristmill_model::{Fingerprint, Namespace};
use gristmill_pipeline::{
    AssetReference, MAX_ASSET_BYTES, MAX_TEXT_BYTES, OperatorRegistry, Pipeline, PipelineError,
    PipelineStage,
};
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// A pipeline whose operators name files by their content.
#[derive(Debug, Clone)]
pub struct AuthoredPipeline {
    pub pipeline: Pipeline,
    /// The contents of the asset files, by hash.
    pub assets: BTreeMap<Fingerprint, Bytes>,
}

impl From<Pipeline> for AuthoredPipeline {
    fn from(pipeline: Pipeline) -> Self {
        Self { pipeline, assets: BTreeMap::new() }
    }
}

/// The folder that paths in the pipeline file `path` are relative to.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl AuthoredPipeline {
    /// Reads and checks the pipeline file `path`, `-` for standard input, and the asset files that it names. An error is
    /// one line with the mistake, its path and its line.
    pub fn read(path: &Path, registry: &OperatorRegistry) -> Result<Self, String> {
        let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let text = read_user_text(file, MAX_TEXT_BYTES as u64).map_err(|why| named(&why))?;
        Self::parse_with(&text, folder_of(path), registry).map_err(|error| named(&error))
    }

    /// Reads and checks the text of a pipeline file, and the asset files that it names, relative to `base`.
    pub fn parse(yaml: &str, base: &Path) -> Result<Self, PipelineError> {
        Self::parse_with(yaml, base, gristmill_operators::registry())
    }

    /// As [`parse`](Self::parse), with the operators of `registry`.
    pub fn parse_with(
        yaml: &str,
        base: &Path,
        registry: &OperatorRegistry,
    ) -> Result<Self, PipelineError> {
        let (mut assets, mut paths) = (BTreeMap::new(), BTreeMap::new());
        let pipeline = Pipeline::parse(yaml, registry)?.with_assets(&mut |path| {
            let content = read_user_file(&base.join(path), MAX_ASSET_BYTES)?;
            let hash = AssetReference::hash(&content);
            assets.insert(hash, Bytes::from(content));
            paths.insert(hash, path.to_owned());
            Ok(hash)
        })?;
        let pipeline = pipeline.with_classes(|path| directories_of(&base.join(path)))?;
        for PipelineStage { op, line, .. } in pipeline.stages() {
            let Some(AssetReference::Content(hash)) = op.asset() else { continue };
            let (Some(path), Some(content)) = (paths.get(hash), assets.get(hash)) else { continue };
            op.check_asset(content).map_err(|why| PipelineError {
                line: *line,
                column: None,
                message: format!("`{}` cannot use `{path}`: {why}", op.name()),
            })?;
        }
        Ok(Self { pipeline, assets })
    }

    /// The numerics class that a job of this pipeline is tied to, if known in advance; else empty. Local
    /// workers have the class of this machine. So do functions that run here, for which it matters only if
    /// there is a cache, because cached chunks are looked up by class.
    pub fn numerics(&self, local_workers: u32, functions_run_here: bool) -> String {
        let looks = functions_run_here && !self.pipeline.cache_points().is_empty();
        if local_workers > 0 || looks { NUMERICS.to_owned() } else { String::new() }
    }

    /// Stores the files in `bucket`, unless they exist.
    pub async fn store(
        &self,
        objects: &dyn ObjectStore,
        ns: &Namespace,
        bucket: &str,
    ) -> Result<(), ObjectError> {
        for (hash, content) in &self.assets {
            // A concurrent writer stores the same bytes: the name is their hash.
            let path = ObjectPath::new(bucket, keys::asset(ns, *hash));
            objects.put_if_absent(&path, content.clone(), "asset").await?;
        }
        Ok(())
    }
}

/// The names of the directories in the folder `path`.
fn directories_of(path: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let walked = gristmill_host::folder::walk(path, "", &mut |entry| {
        if let FolderEntry::Folder(key) = entry
            && !key.starts_with('.')
        {
            names.push(key.trim_end_matches('/').to_owned());
        }
        false
    });
    walked.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(names)
}

// Files that a user names: pipelines, tokenizers, price lists. A mistyped name may lead to any file, so reads
// have a size limit and a time limit.

/// How long a pipe may deliver no data.
const PIPE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a pipe may have no writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);
const PIPE_LOOK: Duration = Duration::from_millis(10);

/// Reads the file `path`, of at most `most` bytes. Errors do not name the path.
pub fn read_user_file(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| in_words(&error))?;
    let about = file.metadata().map_err(|error| in_words(&error))?;
    if about.is_dir() {
        return Err("it is a directory, not a file".to_owned());
    }
    let too_long = || format!("it has more than {most} bytes: is this the right file?");
    if about.is_file() && about.len() > most {
        return Err(too_long());
    }
    let is_pipe = about.file_type().is_fifo();
    let content = read_to_end(file.take(most.saturating_add(1)), is_pipe)?;
    if content.len() as u64 > most {
        return Err(too_long());
    }
    if content.is_empty() && is_pipe {
        return Err("it is a pipe without a writer".to_owned());
    }
    Ok(content)
}

/// As [`read_user_file`], for UTF-8 text.
pub fn read_user_text(path: &Path, most: u64) -> Result<String, String> {
    let content = read_user_file(path, most)?;
    String::from_utf8(content).map_err(|error| not_text(error.as_bytes()))
}

fn not_text(content: &[u8]) -> String {
    match content {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as UTF-8".to_owned(),
        _ => "it is not text (UTF-8)".to_owned(),
    }
}

fn read_to_end(mut from: impl Read, is_pipe: bool) -> Result<Vec<u8>, String> {
    let (mut content, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    let mut received = Instant::now();
    loop {
        match from.read(&mut chunk) {
            // The writer may have waited for this process to open it.
            Ok(0) if is_pipe && content.is_empty() && received.elapsed() < WRITER_TIMEOUT => {
                sleep(PIPE_LOOK);
            }
            Ok(0) => return Ok(content),
            Ok(n) => {
                content.extend_from_slice(&chunk[..n]);
                received = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(in_words(&error)),
            Err(_) if received.elapsed() > PIPE_TIMEOUT => {
                return Err(format!("no data arrived from it for {} s", PIPE_TIMEOUT.as_secs()));
            }
            Err(_) => sleep(PIPE_LOOK),
        }
    }
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        _ if error.raw_os_error() == Some(libc::ENXIO) => "it is a socket, not a file".to_owned(),
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "no permission to read it".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn no_more_is_read_than_such_a_file_may_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.yaml");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_user_text(&path, 5).unwrap(), "12345");
        assert!(read_user_text(&path, 4).unwrap_err().contains("more than 4 bytes"));
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        assert!(read_user_text(&path, 4).unwrap_err().contains("more than 4 bytes"));
        let endless = read_user_file(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(endless.contains("more than 1048576 bytes"), "{endless}");
        assert!(read_user_file(dir.path(), 4).unwrap_err().contains("directory"));
        assert!(read_user_file(&dir.path().join("x"), 4).unwrap_err().contains("no such file"));
    }

    #[test]
    fn a_pipe_is_not_waited_for_in_silence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(read_user_file(&path, 4).unwrap_err().contains("without a writer"));
        let writer = path.clone();
        let writes = std::thread::spawn(move || fs::write(writer, "late"));
        assert_eq!(read_user_file(&path, 4).unwrap(), b"late");
        writes.join().unwrap().unwrap();
    }

    #[test]
    fn utf_16_is_named() {
        assert!(not_text(&[0xff, 0xfe, b'n', 0]).contains("UTF-16"));
    }
}

#[cfg(test)]
mod folder_tests {
    use super::*;

    #[test]
    fn a_pipeline_beside_the_caller_has_its_folder() {
        for (path, folder) in
            [("p.yaml", "."), ("./p.yaml", "."), ("a/p.yaml", "a"), ("/p.yaml", "/")]
        {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
        }
    }
}

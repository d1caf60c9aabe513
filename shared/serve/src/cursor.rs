//! The position of a trainer, the job it belongs to, and the file that stores it.

use gristmill_model::wire::JobView;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

pub use gristmill_model::splits::Cursor;

/// Most bytes of a state file.
const MAX_STATE_BYTES: u64 = 64 << 10;

/// The batches that a position refers to: those of one job over one dataset, with one pipeline and seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamIdentity {
    pub job: String,
    /// The dataset's version.
    pub dataset: String,
    /// Fingerprint of the pipeline, the seed, the batches of a split and everything else that determines the batches.
    pub fingerprint: String,
}

impl StreamIdentity {
    /// The identity of the stream of the job that `view` describes.
    pub fn from_view(view: &JobView) -> Self {
        Self {
            job: view.job.to_string(),
            dataset: view.dataset_version.to_string(),
            fingerprint: view.batches_fingerprint().to_string(),
        }
    }

    /// Why a position of `self` is invalid for `served`; none if the two are equal. `holder` names the store of
    /// the position, such as `state file j.cursor`.
    pub fn mismatch(&self, served: &Self, holder: &str) -> Option<String> {
        let job = &served.job;
        let instead = format!("name one of job {job}, or start without it");
        let short = |text: &str| text.chars().take(12).collect::<String>();
        let differs = |what: &str, mine: &str, other: &str| {
            let (mine, other) = (short(mine), short(other));
            format!("{holder} is of job {job} over another {what} ({mine}, not {other}): {instead}")
        };
        if self.job != *job {
            let mine = short_name(&self.job);
            return Some(format!("{holder} is of job {mine}, and this is job {job}: {instead}"));
        }
        if self.dataset != served.dataset {
            return Some(differs("dataset", &self.dataset, &served.dataset));
        }
        (self.fingerprint != served.fingerprint).then(|| {
            differs("pipeline, seed or split size", &self.fingerprint, &served.fingerprint)
        })
    }
}

/// Makes an untrusted name safe for a line of text.
pub(crate) fn short_name(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(63).collect()
}

/// A stored position with its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCursor {
    #[serde(flatten)]
    pub identity: StreamIdentity,
    /// Batches of a split; a part of the fingerprint too.
    pub split_batches: u32,
    #[serde(flatten)]
    pub cursor: Cursor,
}

impl SavedCursor {
    /// Reads a JSON object; further fields are ignored.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        parse_object(text)
    }
}

/// Reads a value from a JSON object; an array of its fields is none.
pub(crate) fn parse_object<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(|_| "it is not a JSON object".to_owned())?;
    serde_json::from_value(fields.into()).map_err(|error| error.to_string())
}

/// Stores the position of a server's trainer.
pub trait CursorStore: Send + Sync {
    /// The position as last saved, if one ever was.
    fn load(&mut self) -> io::Result<Option<SavedCursor>>;

    /// Saves durably and atomically. Must complete before the position is sent to the coordinator, so that
    /// nothing is deleted that a restart needs.
    fn save(&mut self, saved: &SavedCursor) -> io::Result<()>;

    /// Its name for messages; none if it stores nothing.
    fn name(&self) -> Option<String>;
}

/// Stores nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCursorStore;

impl CursorStore for NoCursorStore {
    fn load(&mut self) -> io::Result<Option<SavedCursor>> {
        Ok(None)
    }

    fn save(&mut self, _: &SavedCursor) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> Option<String> {
        None
    }
}

/// A `--state` file, which one process uses at a time: the file under its name is locked.
#[derive(Debug)]
pub struct CursorFile {
    path: PathBuf,
    /// The file at `path`.
    file: fs::File,
}

impl CursorFile {
    /// Opens and locks the file; creates it if there is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |what: String| io::Error::other(format!("{}: {what}", path.display()));
        // Opening a device may have side effects or block.
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(named("it is not a file: name another --state".to_owned()));
        }
        for _ in 0..100 {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let opened = options.open(path);
            let file = opened.map_err(|error| named(format!("cannot be opened: {error}")))?;
            if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                return Err(named("it is not a file: name another --state".to_owned()));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    let what =
                        "another process uses this state file: end it, or name another --state";
                    return Err(named(what.to_owned()));
                }
                Err(fs::TryLockError::Error(error)) => {
                    return Err(named(format!("cannot be locked: {error}")));
                }
            }
            // Another process may have replaced the file before it released the lock.
            if is_at(&file, path) {
                clear_drafts(path);
                return Ok(Self { path: path.to_owned(), file });
            }
        }
        Err(named("another process keeps replacing it".to_owned()))
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default();
        let draft = self.path.with_file_name(draft_name(name, &std::process::id().to_string()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        let written = (|| {
            // Lock before the rename, so that the file under the name is locked at all times.
            file.try_lock()?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&draft, &self.path)
        })();
        if written.is_err() {
            // Remove an incomplete draft, as of a full disk.
            let _ = fs::remove_file(&draft);
        }
        written?;
        self.file = file;
        fs::File::open(folder_of(&self.path))?.sync_all()
    }
}

impl CursorStore for CursorFile {
    fn load(&mut self) -> io::Result<Option<SavedCursor>> {
        let named = |what: String| io::Error::other(format!("{}: {what}", self.path.display()));
        let mut text = Vec::new();
        let opened = fs::File::open(&self.path);
        let read = opened.and_then(|file| file.take(MAX_STATE_BYTES).read_to_end(&mut text));
        read.map_err(|error| named(format!("cannot be read: {error}")))?;
        if text.is_empty() {
            return Ok(None);
        }
        SavedCursor::parse(&text).map(Some).map_err(|error| {
            named(format!("not a state file ({error}): name another --state, or remove it"))
        })
    }

    fn save(&mut self, saved: &SavedCursor) -> io::Result<()> {
        let text = serde_json::to_vec(saved)?;
        let path = self.path.display().to_string();
        self.replace(&text)
            .map_err(|error| io::Error::other(format!("cannot write {path}: {error}")))
    }

    fn name(&self) -> Option<String> {
        Some(format!("state file {}", self.path.display()))
    }
}

impl Drop for CursorFile {
    /// Removes a file without a position.
    fn drop(&mut self) {
        let empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if empty && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn draft_name(name: &OsStr, pid: &str) -> OsString {
    let mut draft = name.to_owned();
    draft.push(format!(".{pid}.draft"));
    draft
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes the drafts of processes killed while writing the file at `path`; call it with the lock held.
fn clear_drafts(path: &Path) {
    let Ok(found) = fs::read_dir(folder_of(path)) else { return };
    let name = path.file_name().unwrap_or_default();
    for entry in found.flatten() {
        let own = entry.file_name();
        let rest = own.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        let pid = rest.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(b".draft"));
        if pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether `path` still names `file`.
fn is_at(file: &fs::File, path: &Path) -> bool {
    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(a), Ok(b)) if id(&a) == id(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(job: &str, batch_index: u64) -> SavedCursor {
        let identity = StreamIdentity {
            job: job.into(),
            dataset: "d".repeat(64),
            fingerprint: "f".repeat(64),
        };
        SavedCursor { identity, split_batches: 1, cursor: Cursor::new(0, batch_index) }
    }

    #[test]
    fn two_files_of_a_folder_share_nothing_and_each_has_one_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut files = ["cur.a1", "cur.b1"].map(|name| CursorFile::open(&path(name)).unwrap());
        for (index, file) in (3..).zip(&mut files) {
            assert_eq!(file.load().unwrap(), None);
            file.save(&saved("j", index)).unwrap();
            // The lock passes to the replacement.
            file.save(&saved("j", index + 10)).unwrap();
        }
        for (index, name) in [(13, "cur.a1"), (14, "cur.b1")] {
            let refused = CursorFile::open(&path(name)).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("another process"), "{refused}");
            let text = fs::read(path(name)).unwrap();
            assert_eq!(SavedCursor::parse(&text).unwrap(), saved("j", index));
        }
        drop(files);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no draft is left");
        let mut again = CursorFile::open(&path("cur.a1")).unwrap();
        assert_eq!(again.load().unwrap(), Some(saved("j", 13)));
        // A process killed while writing leaves a draft; files that only resemble drafts are kept.
        for name in ["cur.b1.17.draft", "cur.b1.x.draft", "cur.b12.17.draft"] {
            fs::write(path(name), "{").unwrap();
        }
        drop(CursorFile::open(&path("cur.b1")).unwrap());
        assert!(!path("cur.b1.17.draft").exists());
        assert!(path("cur.b1.x.draft").exists() && path("cur.b12.17.draft").exists());
        drop(CursorFile::open(&path("unused")).unwrap());
        assert!(!path("unused").exists());
    }

    #[test]
    fn a_file_that_is_no_state_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for text in
            ["[1,2]", "{}", "7", "{\"epoch\": 0, \"batch_index\": 3}", "{\"epoch\": -1}", "x"]
        {
            fs::write(&path, text).unwrap();
            let refused = CursorFile::open(&path).unwrap().load().unwrap_err().to_string();
            assert!(refused.contains("/s: not a state file"), "{text}: {refused}");
        }
        for path in [dir.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            let refused = CursorFile::open(path).unwrap_err().to_string();
            assert!(refused.contains("it is not a file"), "{refused}");
        }
        assert!(CursorFile::open(&dir.path().join("no/such")).is_err());
    }

    #[test]
    fn a_position_of_another_job_is_refused_by_name() {
        let (mine, other) = (saved("j", 1).identity, saved("k", 1).identity);
        assert_eq!(mine.mismatch(&mine, "state file s"), None);
        let why = other.mismatch(&mine, "state file s").unwrap();
        assert!(why.starts_with("state file s is of job k, and this is job j"), "{why}");
        let dataset = StreamIdentity { dataset: "e".repeat(64), ..mine.clone() };
        assert!(dataset.mismatch(&mine, "it").unwrap().contains("another dataset (eeeeeeeeeeee,"));
        let seed = StreamIdentity { fingerprint: "e".repeat(64), ..mine.clone() };
        assert!(
            seed.mismatch(&mine, "it").unwrap().contains("another pipeline, seed or split size")
        );
    }
}

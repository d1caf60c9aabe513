//! The log of the worker processes, bounded: an earlier file is kept, and replaced when the present one is full.

use gristmill_host::open_private;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// Most bytes of one file; there are two.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 20;

/// A log that several processes write to.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    open: Mutex<Option<(File, u64)>>,
}

impl LogFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::default() }
    }

    /// Appends `text`. A log that cannot be written, as on a full disk, must not stop the work.
    pub fn append(&self, text: &[u8]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if self.try_append(&mut open, text).is_err() {
            *open = None;
        }
    }

    fn try_append(&self, open: &mut Option<(File, u64)>, text: &[u8]) -> io::Result<()> {
        if open.as_ref().is_some_and(|(_, bytes)| *bytes >= FILE_BYTES_MAX) {
            *open = None;
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        if open.is_none() {
            let file = open_private(&self.path, File::options().append(true).create(true))?;
            let bytes = file.metadata()?.len();
            *open = Some((file, bytes));
        }
        let Some((file, bytes)) = open else { return Ok(()) };
        *bytes += text.len() as u64;
        file.write_all(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_its_latest_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        let log = LogFile::new(path.clone());
        let line = vec![b'x'; 1 << 16];
        for _ in 0..300 {
            log.append(&line);
        }
        log.append(b"last\n");
        let files: Vec<u64> = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(files.len(), 2);
        assert!(
            files.iter().all(|bytes| *bytes <= FILE_BYTES_MAX + line.len() as u64),
            "{files:?}"
        );
        assert!(fs::read(path).unwrap().ends_with(b"last\n"));
    }
}

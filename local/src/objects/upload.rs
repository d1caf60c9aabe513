//! An upload in progress: written to a file that nobody can see, and hashed on the way.

use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::HeaderMap;
use s3s::{S3Result, s3_error};

use super::checksums::Sums;
use super::failure::io_failure;
use super::record::Record;
use crate::ids;

/// A file that is removed unless it is published.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    is_kept: bool,
}

impl Temporary {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the file: it was published.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // A file that cannot be removed now is removed at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// An object being written. All methods block.
pub(super) struct Upload {
    temporary: Temporary,
    file: File,
    sums: Sums,
    object_bytes: u64,
}

impl Upload {
    pub(super) fn create(path: PathBuf, sums: Sums) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(&path)?;
        let temporary = Temporary { path, is_kept: false };
        Ok(Self { temporary, file, sums, object_bytes: 0 })
    }

    /// Appends a batch.
    pub(super) fn write(&mut self, batch: &[Bytes]) -> io::Result<()> {
        for bytes in batch {
            self.sums.update(bytes);
            self.object_bytes += bytes.len() as u64;
        }
        let mut slices: Vec<IoSlice<'_>> = batch.iter().map(|b| IoSlice::new(b)).collect();
        write_all(&mut self.file, &mut slices)
    }

    /// Verifies the data against the promises and appends the record: the file is then the object.
    ///
    /// # Errors
    /// Errors of [`Sums::verify`], `IncompleteBody` if the length differs, `MetadataTooLarge`, and errors of the
    /// disk.
    pub(super) fn finish(
        mut self,
        mut record: Record,
        declared_bytes: Option<u64>,
        trailers: Option<&HeaderMap>,
        durable: bool,
    ) -> S3Result<(Temporary, Record)> {
        if declared_bytes.is_some_and(|declared| declared != self.object_bytes) {
            return Err(s3_error!(IncompleteBody, "{} bytes arrived", self.object_bytes));
        }
        self.sums.trailed(trailers)?;
        let (checksums, md5) = self.sums.verify()?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => s3_error!(MetadataTooLarge),
            _ => io_failure("write", "the object", &error),
        };
        record.etag = match md5 {
            Some(md5) => ids::hex(&md5),
            // The dash shows clients that it is no MD5.
            None => format!("{}-1", ids::hex(&ids::random::<16>().map_err(failed)?)),
        };
        record.checksums = checksums;
        record.object_bytes = self.object_bytes;
        let end = record.encode().map_err(failed)?;
        self.file.write_all(&end).map_err(failed)?;
        if durable {
            self.file.sync_all().map_err(failed)?;
        }
        Ok((self.temporary, record))
    }
}

fn write_all(file: &mut File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Empty leading slices would look like a full disk.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

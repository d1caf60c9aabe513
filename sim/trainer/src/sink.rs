//! `--sink`: every delivered batch as a file, so that anyone can check what was delivered.

use gristmill_client::{Batch, Failure};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A directory of `e{epoch}-b{batch:06}.safetensors` files.
#[derive(Debug, Clone)]
pub struct Sink {
    dir: PathBuf,
}

impl Sink {
    /// Creates the directory if it is missing. One that holds batches of another run is refused,
    /// because the two could not be distinguished.
    ///
    /// # Errors
    /// The directory is not usable.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        let named = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("cannot use sink {}: {error}", dir.display()))
        };
        fs::create_dir_all(dir).map_err(|error| named(&error))?;
        for entry in fs::read_dir(dir).map_err(|error| named(&error))? {
            let name = entry.map_err(|error| named(&error))?.file_name();
            if name.as_encoded_bytes().ends_with(b".safetensors") {
                return Err(named(&"it holds batches already; name an empty directory"));
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Writes one batch, as it was delivered.
    pub fn write(&self, batch: &Batch) -> Result<(), Failure> {
        let path = self.dir.join(format!("e{}-b{:06}.safetensors", batch.epoch, batch.batch_index));
        let named = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        fs::write(&path, &batch.frame).map_err(named)
    }
}

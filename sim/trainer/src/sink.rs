//! `--sink`: every delivered batch as a file, so that anyone can check what was delivered.

use gristmill_client::ProgramFailure;
use gristmill_stream::DeliveredBatch;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A directory of `e{epoch}-b{batch:06}.safetensors` files.
#[derive(Debug, Clone)]
pub struct BatchFileSink {
    dir: PathBuf,
}

impl BatchFileSink {
    /// Creates the directory if it is missing. One that holds batches of another run is refused,
    /// because the two could not be distinguished.
    ///
    /// # Errors
    /// The directory is not usable.
    pub fn open(dir: &Path) -> Result<Self, ProgramFailure> {
        let named = |error: &dyn std::fmt::Display| {
            ProgramFailure::usage(format!("cannot use sink {}: {error}", dir.display()))
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

    /// Writes one batch, as it was delivered. A file that is there is whole, also after a kill.
    pub fn write(&self, batch: &DeliveredBatch) -> Result<(), ProgramFailure> {
        let name = format!("e{}-b{:06}", batch.epoch, batch.batch_index);
        let path = self.dir.join(format!("{name}.safetensors"));
        let draft = self.dir.join(format!("{name}.part"));
        let written = fs::write(&draft, &batch.frame).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            ProgramFailure::failed(format!("cannot write {}: {error}", path.display()))
        })
    }
}

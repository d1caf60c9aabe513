//! Recounting what was delivered, with an independent reader of safetensors.

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Contents of a directory of delivered batches.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Per epoch: deliveries of each record key.
    pub keys: BTreeMap<u32, BTreeMap<u64, u32>>,
    /// Per epoch: rows of each batch in order.
    pub rows: BTreeMap<u32, Vec<usize>>,
    /// BLAKE3 over all batches in order.
    pub blake3: String,
}

impl Delivered {
    /// Adds one batch, in order.
    pub fn add(&mut self, epoch: u32, g: u64, bytes: &[u8]) -> Result<()> {
        let rows = self.rows.entry(epoch).or_default();
        ensure!(rows.len() as u64 == g, "batch {g} of epoch {epoch} follows batch {}", rows.len());
        let tensors = SafeTensors::deserialize(bytes)?;
        let keys = tensors.tensor("__key__").context("no keys")?;
        let keys: Vec<u64> =
            keys.data().as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        for (name, tensor) in tensors.tensors() {
            ensure!(tensor.shape().first() == Some(&keys.len()), "{name} has other rows");
        }
        rows.push(keys.len());
        let seen = self.keys.entry(epoch).or_default();
        keys.into_iter().for_each(|key| *seen.entry(key).or_default() += 1);
        Ok(())
    }

    /// Every one of `records` came exactly once in each of `epochs`, in full batches but the last.
    pub fn assert_exact(&self, epochs: u32, records: usize, batch_size: usize) {
        assert_eq!(self.keys.len(), epochs as usize, "epochs delivered");
        for (epoch, keys) in &self.keys {
            assert_eq!(keys.len(), records, "distinct records of epoch {epoch}");
            assert!(keys.values().all(|n| *n == 1), "a record came twice in epoch {epoch}");
            let rows = &self.rows[epoch];
            let full = &rows[..rows.len() - 1];
            assert!(full.iter().all(|n| *n == batch_size), "a batch of epoch {epoch} is not full");
        }
    }
}

/// Reads the files of `--sink`.
pub fn read_sink(dir: &Path) -> Result<Delivered> {
    let mut delivered = Delivered::default();
    let mut hasher = blake3::Hasher::new();
    for ((epoch, g), path) in batch_files(dir)? {
        let bytes = std::fs::read(&path)?;
        hasher.update(&bytes);
        delivered.add(epoch, g, &bytes)?;
    }
    delivered.blake3 = hasher.finalize().to_string();
    Ok(delivered)
}

/// The numbers of an i64 field in the files of `--sink`, in the order of their delivery, by epoch.
pub fn read_numbers(dir: &Path, field: &str) -> Result<BTreeMap<u32, Vec<i64>>> {
    let mut numbers: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for ((epoch, _), path) in batch_files(dir)? {
        let bytes = std::fs::read(&path)?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let values = tensors.tensor(field)?.data().as_chunks::<8>().0;
        numbers.entry(epoch).or_default().extend(values.iter().map(|b| i64::from_le_bytes(*b)));
    }
    Ok(numbers)
}

/// The batches of `dir` by epoch and number.
fn batch_files(dir: &Path) -> Result<BTreeMap<(u32, u64), PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // A kill leaves the draft of the batch that was being written.
        if path.extension().is_some_and(|extension| extension == "part") {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).context("a file name")?;
        let (epoch, g) = name.split_once("-b").context("a batch's file name")?;
        let epoch: u32 = epoch.strip_prefix('e').context("an epoch")?.parse()?;
        files.insert((epoch, g.parse::<u64>()?), path);
    }
    Ok(files)
}

//! Files that operators need in addition to the pipeline, such as a tokenizer's vocabulary.
//!
//! A pipeline file names them by path, a job by the BLAKE3 hash of their content. Fingerprints so
//! cover the content, and workers do not need the author's disk. To register a job, the client
//! reads the files ([`Pipeline::asset_paths`]), stores each under its hash, and replaces the paths
//! by the hashes ([`Pipeline::with_assets`]). This crate does no I/O itself.

use crate::{Pipeline, PipelineError, PipelineStage, table::MappingReader};
use gristmill_model::Fingerprint;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// Maximum size of an asset in bytes, since every worker loads it. The vocabularies of the largest
/// language models take a quarter of this.
pub const MAX_ASSET_BYTES: u64 = 64 << 20;

/// Prefix that marks a hash where a path is possible.
const BY_CONTENT: &str = "blake3:";

/// A file that an operator needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssetReference {
    /// Path on the author's machine.
    Path(String),
    /// BLAKE3 hash of its content.
    Content(Fingerprint),
}

impl AssetReference {
    /// The hash that identifies this content.
    pub fn hash(content: &[u8]) -> Fingerprint {
        Fingerprint(*blake3::hash(content).as_bytes())
    }

    /// Reads `key`: a path, or a hash as in the canonical form.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(
        params: &mut MappingReader<'_>,
        key: &'static str,
    ) -> Result<AssetReference, PipelineError> {
        let node = params.require(key)?;
        let text = params.text(key, node)?;
        let Some(hash) = text.strip_prefix(BY_CONTENT) else {
            return Ok(AssetReference::Path(text));
        };
        let hash = hash.parse().map_err(|_| {
            node.error(format!("`{key}` must be a path, or {BY_CONTENT} and 64 hexadecimal digits"))
        })?;
        Ok(AssetReference::Content(hash))
    }
}

impl Serialize for AssetReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            AssetReference::Path(path) => serializer.serialize_str(path),
            AssetReference::Content(hash) => {
                serializer.collect_str(&format_args!("{BY_CONTENT}{hash}"))
            }
        }
    }
}

impl Pipeline {
    /// Paths of the assets whose hash is not known yet, as the author wrote them, without
    /// duplicates.
    pub fn asset_paths(&self) -> Vec<&str> {
        let paths = self.stages().iter().filter_map(|stage| match stage.op.asset()? {
            AssetReference::Path(path) => Some(path.as_str()),
            AssetReference::Content(_) => None,
        });
        paths.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Hashes of the assets that a worker loads before it compiles, without duplicates.
    pub fn assets(&self) -> Vec<Fingerprint> {
        let hashes = self.stages().iter().filter_map(|stage| match stage.op.asset()? {
            AssetReference::Content(hash) => Some(*hash),
            AssetReference::Path(_) => None,
        });
        hashes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Replaces every path by the hash of the file's content. `hash_of` reads the file, checks that
    /// it has at most [`MAX_ASSET_BYTES`], and returns its [`AssetReference::hash`].
    ///
    /// # Errors
    /// The error of `hash_of` for a path, with the operator's line.
    pub fn with_assets(
        self,
        hash_of: &mut dyn FnMut(&str) -> Result<Fingerprint, String>,
    ) -> Result<Pipeline, PipelineError> {
        if self.asset_paths().is_empty() {
            return Ok(self);
        }
        let mut stages = self.stages().to_vec();
        for PipelineStage { op, line, .. } in &mut stages {
            let name = op.name();
            let Some(asset) = op.asset_mut() else { continue };
            if let AssetReference::Path(path) = asset {
                let hash = hash_of(path).map_err(|why| {
                    PipelineError::at_line(*line, format!("`{name}` needs `{path}`: {why}"))
                })?;
                *asset = AssetReference::Content(hash);
            }
        }
        self.with_stages(stages)
    }
}

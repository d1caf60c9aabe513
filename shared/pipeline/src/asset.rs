//! Files that operators need beside the pipeline, such as a tokenizer's vocabulary.
//!
//! A pipeline file names them by path; a job by the BLAKE3 of their content, so that fingerprints say what
//! is in them and no worker needs the author's disk. Whoever registers a job reads them
//! ([`Pipeline::asset_paths`]), puts each where workers find it by its hash, and has the hashes take the
//! place of the paths ([`Pipeline::with_assets`]). This crate does no I/O: it is told.

use crate::{Pipeline, PipelineError, Stage, table::Table};
use gristmill_model::Fingerprint;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// Largest file an operator may need, in bytes: the vocabularies of the largest language models take a
/// quarter of it, and every worker loads it.
pub const MAX_ASSET_BYTES: u64 = 64 << 20;

/// What stands before the hash where a path could stand.
const BY_CONTENT: &str = "blake3:";

/// A file that an operator needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asset {
    /// Where its author has it.
    Path(String),
    /// The BLAKE3 of its content.
    Content(Fingerprint),
}

impl Asset {
    /// The hash that names this content.
    pub fn hash(content: &[u8]) -> Fingerprint {
        Fingerprint(*blake3::hash(content).as_bytes())
    }

    /// `key`: a path, or a hash as the canonical form has it.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(params: &mut Table<'_>, key: &'static str) -> Result<Asset, PipelineError> {
        let node = params.require(key)?;
        let text = params.text(key, node)?;
        let Some(hash) = text.strip_prefix(BY_CONTENT) else { return Ok(Asset::Path(text)) };
        let hash = hash.parse().map_err(|_| {
            node.error(format!("`{key}` must be a path, or {BY_CONTENT} and 64 hexadecimal digits"))
        })?;
        Ok(Asset::Content(hash))
    }
}

impl Serialize for Asset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Asset::Path(path) => serializer.serialize_str(path),
            Asset::Content(hash) => serializer.collect_str(&format_args!("{BY_CONTENT}{hash}")),
        }
    }
}

impl Pipeline {
    /// The paths of files that operators need and that are not yet known by their content, as the author
    /// wrote them, each once.
    pub fn asset_paths(&self) -> Vec<&str> {
        let paths = self.stages().iter().filter_map(|stage| match stage.op.asset()? {
            Asset::Path(path) => Some(path.as_str()),
            Asset::Content(_) => None,
        });
        paths.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The contents that operators need, each once: what a worker loads before it compiles.
    pub fn assets(&self) -> Vec<Fingerprint> {
        let hashes = self.stages().iter().filter_map(|stage| match stage.op.asset()? {
            Asset::Content(hash) => Some(*hash),
            Asset::Path(_) => None,
        });
        hashes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The same with every path replaced by the hash of its content, which `hash_of` finds out: it reads
    /// the file, checks that it has at most [`MAX_ASSET_BYTES`], and returns [`Asset::hash`] of it.
    ///
    /// # Errors
    /// What `hash_of` says of a path, with the operator's line.
    pub fn with_assets(
        self,
        hash_of: &mut dyn FnMut(&str) -> Result<Fingerprint, String>,
    ) -> Result<Pipeline, PipelineError> {
        if self.asset_paths().is_empty() {
            return Ok(self);
        }
        let mut stages = self.stages().to_vec();
        for Stage { op, line, .. } in &mut stages {
            let name = op.name();
            let Some(asset) = op.asset_mut() else { continue };
            if let Asset::Path(path) = asset {
                let hash = hash_of(path).map_err(|why| {
                    PipelineError::at_line(*line, format!("`{name}` needs `{path}`: {why}"))
                })?;
                *asset = Asset::Content(hash);
            }
        }
        self.with_stages(stages)
    }
}

//! A pipeline as its author wrote it, and the asset files of its operators: read relative to the pipeline's
//! file, and stored for workers by their content.

use crate::user_file::{read_user_file, read_user_text};
use bytes::Bytes;
use gristmill_executor::NUMERICS;
use gristmill_folder::FolderEntry;
use gristmill_model::stored::keys;
use gristmill_model::{Fingerprint, Namespace};
use gristmill_pipeline::{
    AssetReference, MAX_ASSET_BYTES, MAX_TEXT_BYTES, OperatorRegistry, Pipeline, PipelineError,
    PipelineStage,
};
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore};
use std::{collections::BTreeMap, path::Path};

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

impl AuthoredPipeline {
    /// Reads and checks the pipeline file `path`, `-` for standard input, and the asset files that it names.
    ///
    /// # Errors
    /// One line that names the mistake, its path and its line.
    pub fn read(path: &Path, registry: &OperatorRegistry) -> Result<Self, String> {
        let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let text = read_user_text(file, MAX_TEXT_BYTES as u64).map_err(|why| named(&why))?;
        let base = path.parent().unwrap_or(Path::new("."));
        Self::parse_with(&text, base, registry).map_err(|error| named(&error))
    }

    /// Reads and checks the text of a pipeline file, and the asset files that it names, relative to `base`.
    ///
    /// # Errors
    /// The mistake, with its line.
    pub fn parse(yaml: &str, base: &Path) -> Result<Self, PipelineError> {
        Self::parse_with(yaml, base, gristmill_operators::registry())
    }

    /// As [`parse`](Self::parse), with the operators of `registry`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
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
    ///
    /// # Errors
    /// The object store refuses them.
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
    let walked = gristmill_folder::walk(path, "", &mut |entry| {
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

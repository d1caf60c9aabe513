//! Stores finished splits as objects, one put each.

use crate::{FinishedSplit, RunError, Runner, Sink, SplitName, storing::put};
use async_trait::async_trait;
use gristmill_model::JobName;
use gristmill_model::splits::{Commit, SplitKind};
use gristmill_model::stored::keys;
use gristmill_ports::{ObjectPath, PutOutcome};

/// Puts each split as one object, under a key that no other attempt uses.
pub struct ObjectSink {
    pub runner: Runner,
    pub job: JobName,
}

#[async_trait]
impl Sink for ObjectSink {
    async fn store(&self, name: &SplitName, split: &FinishedSplit) -> Result<Commit, RunError> {
        if split.indexed {
            return Ok(split.commit(name.split_index, SplitKind::Object, 0));
        }
        let own =
            || keys::bundle_prefix(&self.runner.config.ns, &self.job, name.epoch, name.bundle);
        let shelf = split.shelf.as_ref();
        let prefix = shelf.map_or_else(own, |shelf| keys::shelf_bundle(shelf, name.bundle));
        let key = keys::chunk(&prefix, name.position, name.attempt, name.nonce);
        let checksum = gristmill_chunk::checksum(&split.object)
            .map_err(|error| RunError::Passing(error.to_string()))?;
        let commit = split.commit(name.split_index, SplitKind::Object, checksum);
        let path = ObjectPath::new(&self.runner.config.bucket, &key);
        match put(&self.runner, &path, &split.object, &name.nonce.to_string()).await? {
            PutOutcome::Created => Ok(commit),
            PutOutcome::Exists => {
                Err(RunError::Passing(format!("{key} was put by another worker of the same nonce")))
            }
        }
    }
}

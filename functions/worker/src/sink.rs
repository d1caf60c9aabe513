//! Finished splits become objects, one put each.

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ObjectPath, PutOutcome};
use gristmill_protocol::{Commit, keys};
use gristmill_runner::{FinishedSplit, RunError, Runner, Sink, SplitName};
use gristmill_types::JobName;

/// Puts each split as one object under a key nobody else can have.
pub struct ObjectSink {
    pub runner: Runner,
    pub job: JobName,
}

#[async_trait]
impl Sink for ObjectSink {
    async fn store(&self, name: &SplitName, split: &FinishedSplit) -> Result<Commit, RunError> {
        if split.indexed {
            return Ok(split.commit(name.index, false, 0));
        }
        let ns = &self.runner.config.ns;
        let prefix = keys::bundle_prefix(ns, &self.job, name.epoch, name.bundle);
        let key = keys::chunk(&prefix, name.position, name.attempt, name.nonce);
        let checksum = gristmill_format::checksum(&split.object)
            .map_err(|error| RunError::Passing(error.to_string()))?;
        let commit = split.commit(name.index, false, checksum);
        match self.put(key.clone(), split.object.clone(), &name.nonce.to_string()).await? {
            PutOutcome::Created => Ok(commit),
            PutOutcome::Exists => {
                Err(RunError::Passing(format!("{key} was put by another worker of the same nonce")))
            }
        }
    }
}

impl ObjectSink {
    async fn put(&self, key: String, body: Bytes, put_id: &str) -> Result<PutOutcome, RunError> {
        let path = ObjectPath::new(&self.runner.config.bucket, key);
        Ok(self.runner.objects.put_if_absent(&path, body, put_id).await?)
    }
}

//! Destinations of finished splits: what they let a worker claim, and how they store a result.

use crate::{FinishedSplit, LeaseError, Runner, SplitName, storing::put};
use async_trait::async_trait;
use gristmill_model::splits::{SplitCommit, SplitKind, SplitPlace};
use gristmill_model::stored::keys;
use gristmill_model::wire::ClaimReply;
use gristmill_model::{Epoch, JobName, Position};
use gristmill_ports::{ObjectPath, PutOutcome};

/// The bundles that a worker may claim now.
pub enum ClaimableBundles {
    /// Any bundle.
    Any,
    /// Only the bundle of this split, for which the trainer waits. Others ask once `turn` is dropped.
    Needed {
        place: SplitPlace,
        turn: Box<dyn Send>,
    },
    Nothing,
}

/// Destination of finished splits.
#[async_trait]
pub trait SplitSink: Send + Sync {
    /// The bundles that the worker may claim now.
    fn claimable(&self) -> ClaimableBundles {
        ClaimableBundles::Any
    }

    /// Takes note of the answer to a claim.
    fn answered(&self, _reply: &ClaimReply) {}

    /// Whether the worker goes on with a lease of which the splits at `rest` are left. It gives them back otherwise.
    fn goes_on(&self, _epoch: Epoch, _rest: &[Position]) -> bool {
        true
    }

    /// Stores the split's result as durably as its commit promises, and returns the commit.
    async fn store(
        &self,
        name: &SplitName,
        split: &FinishedSplit,
    ) -> Result<SplitCommit, LeaseError>;

    /// Whether the trainer waits for the split, so that its commit does not wait for others.
    fn is_awaited(&self, _name: &SplitName) -> bool {
        false
    }

    /// The split was stored, and its commit did not become known.
    fn discard(&self, _name: &SplitName) {}
}

/// Puts each split as one object, under a key that no other attempt uses.
pub struct ObjectSink {
    pub runner: Runner,
    pub job: JobName,
}

#[async_trait]
impl SplitSink for ObjectSink {
    async fn store(
        &self,
        name: &SplitName,
        split: &FinishedSplit,
    ) -> Result<SplitCommit, LeaseError> {
        if split.indexed {
            return Ok(split.commit(name.split_index, SplitKind::Object, 0));
        }
        let own =
            || keys::bundle_prefix(&self.runner.config.ns, &self.job, name.epoch, name.bundle);
        let shelf = split.shelf.as_ref();
        let prefix = shelf.map_or_else(own, |shelf| keys::shelf_bundle(shelf, name.bundle));
        let key = keys::chunk(&prefix, name.position, name.attempt, name.nonce);
        let checksum = gristmill_chunk::checksum(&split.object)
            .map_err(|error| LeaseError::Passing(error.to_string()))?;
        let commit = split.commit(name.split_index, SplitKind::Object, checksum);
        let path = ObjectPath::new(&self.runner.config.bucket, &key);
        match put(&self.runner, &path, &split.object, &name.nonce.to_string()).await? {
            PutOutcome::Created => Ok(commit),
            PutOutcome::Exists => Err(LeaseError::Passing(format!(
                "{key} was put by another worker of the same nonce"
            ))),
        }
    }
}

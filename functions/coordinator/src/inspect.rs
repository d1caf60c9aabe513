//! The items of a table as somebody who only looks sees them: simulations, which check every write.

use crate::{items::ItemName, store::Stored as _};
use gristmill_ports::ItemKey;
use gristmill_splits::{Bundle, Consumer};
use gristmill_types::{BundleIndex, Epoch, JobName, Namespace};

/// An item whose transitions the split protocol constrains.
#[derive(Debug, Clone)]
pub enum Stored {
    Bundle(Box<Bundle>),
    Consumer(Consumer),
    Other,
}

/// What is stored under `key`.
///
/// # Errors
/// One line if the body is not what its key promises.
pub fn decode(key: &ItemKey, body: &[u8]) -> Result<Stored, String> {
    match key.sk.split_once('#') {
        Some(("B", _)) => Bundle::decode(body).map(Box::new).map(Stored::Bundle),
        Some(("C", _)) => Consumer::decode(body).map(Stored::Consumer),
        _ => Ok(Stored::Other),
    }
}

/// The key of a bundle.
pub fn bundle_key(ns: &Namespace, job: &JobName, epoch: Epoch, bundle: BundleIndex) -> ItemKey {
    ItemName::Bundle(job, epoch, bundle).key(ns)
}

/// The key of the trainer's item.
pub fn consumer_key(ns: &Namespace, job: &JobName) -> ItemKey {
    ItemName::Consumer(job).key(ns)
}

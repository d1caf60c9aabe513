//! Reads the input of a split, from the dataset or from a cache.

use super::{Content, Extras, SplitTask, micros, resuming};
use crate::{JobContext, LeaseError, Runner, parts};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheOrders, CachePointOrder};
use gristmill_model::{Epoch, Position};
use gristmill_ports::{ObjectError, ObjectPath};
use std::collections::VecDeque;

impl JobContext {
    /// Reads the input of the split at `position` of `epoch`: from the cache if ordered and present.
    pub async fn read(
        &self,
        runner: &Runner,
        orders: &CacheOrders,
        epoch: Epoch,
        position: Position,
    ) -> Result<SplitTask, LeaseError> {
        let began = runner.clock.monotonic();
        let order = orders.get.as_ref().or(orders.put.as_ref());
        // A random prefix that is cached for reuse always has the draws of the first epoch.
        let drawn = if order.is_some_and(|order| order.random) { 0 } else { epoch };
        let key = match order {
            Some(CachePointOrder { shelf, .. }) => {
                let visit = self.visit_number(runner, epoch, position).await?;
                Some(keys::cached_split(shelf, visit))
            }
            None => None,
        };
        let cached = match (&orders.get, &key) {
            (Some(order), Some(key)) => cached(runner, order.point, key).await?,
            _ => None,
        };
        let content = match cached {
            Some(cached) => cached,
            None => {
                let (first, rest) = self.read_source(runner, (epoch, drawn), position).await?;
                Content::Source { first, rest }
            }
        };
        // If the cached object was missing, store it again.
        let missing = matches!(content, Content::Source { .. });
        let put = order.filter(|_| missing).map(|order| order.point).zip(key);
        let bytes = match &content {
            Content::Source { first, .. } => first.bytes(),
            Content::Cached { object, .. } => object.len() as u64,
        };
        let took = (bytes, micros(runner.clock.monotonic().saturating_sub(began)));
        let (shelf, profile) = (orders.chunks.clone(), orders.profile);
        let extras = Extras { shelf, put, profile, stored: Some(Vec::new()), took };
        Ok(SplitTask { content, extras })
    }
}

/// The cached output under `key`; none if it is gone, or shorter than it should be.
async fn cached(runner: &Runner, point: u32, key: &str) -> Result<Option<Content>, LeaseError> {
    let path = ObjectPath::new(&runner.config.bucket, key);
    let read = async {
        let object = runner.objects.get(&path).await?;
        let Some(parts) = parts::of_index(key, &object) else {
            return Ok((object, VecDeque::new()));
        };
        let mut parts = VecDeque::from(parts);
        match parts.pop_front() {
            Some(first) => Ok((resuming::part(runner, &first).await?, parts)),
            None => Ok((object, parts)),
        }
    };
    match read.await {
        Ok((object, rest)) => Ok(Some(Content::Cached { point, object, rest })),
        Err(error @ (ObjectError::NotFound(_) | ObjectError::Rejected(_))) => {
            tracing::warn!("{error}: this cached split is computed and stored again");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

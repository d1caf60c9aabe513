//! Objects of the bucket: JSON, lists and deletions, with the store's errors as refusals.

use crate::{
    CoordinatorSettings,
    store::{busy, invalid},
};
use gristmill_model::wire::CallRefusal;
use gristmill_ports::{Clock, ObjectError, ObjectInfo, ObjectPath, ObjectStore};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// Time for which a call deletes objects; its sender waits for 10 s.
const CALL_MS: u64 = 5_000;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeletedObjects {
    pub objects: u64,
    pub all: bool,
}

impl DeletedObjects {
    /// Both deletions together.
    pub fn and(self, then: Self) -> Self {
        Self { objects: self.objects + then.objects, all: self.all && then.all }
    }
}

pub(crate) fn object_fault(error: &ObjectError) -> CallRefusal {
    match error {
        ObjectError::Unavailable(_) | ObjectError::Full(_) | ObjectError::Denied(_) => {
            busy(error.to_string())
        }
        _ => invalid(error.to_string()),
    }
}

#[derive(Clone)]
pub(crate) struct BucketObjects {
    pub store: Arc<dyn ObjectStore>,
    pub clock: Arc<dyn Clock>,
    pub settings: Arc<CoordinatorSettings>,
}

impl BucketObjects {
    /// The object under `key`, which is `what`; none if there is no object.
    pub(crate) async fn read_json<T: DeserializeOwned>(
        &self,
        key: String,
        what: &str,
    ) -> Result<Option<T>, CallRefusal> {
        let path = ObjectPath::new(&self.settings.bucket, key);
        match self.store.get(&path).await {
            Ok(body) => serde_json::from_slice(&body)
                .map(Some)
                .map_err(|error| invalid(format!("{path} is not {what}: {error}"))),
            Err(ObjectError::NotFound(_)) => Ok(None),
            Err(error) => Err(object_fault(&error)),
        }
    }

    /// Puts an object unless its key has one.
    pub(crate) async fn put_json(
        &self,
        key: String,
        value: &impl Serialize,
        put_id: &str,
    ) -> Result<(), CallRefusal> {
        let body = serde_json::to_vec(value).map_err(|error| invalid(error.to_string()))?;
        let path = ObjectPath::new(&self.settings.bucket, key);
        let put = self.store.put_if_absent(&path, body.into(), put_id).await;
        put.map(|_| ()).map_err(|error| object_fault(&error))
    }

    pub(crate) async fn list_objects(&self, prefix: &str) -> Result<Vec<ObjectInfo>, CallRefusal> {
        let listed = self.store.list(&self.settings.bucket, prefix).await;
        listed.map_err(|error| object_fault(&error))
    }

    pub(crate) async fn delete_objects(&self, keys: &[String]) -> Result<(), CallRefusal> {
        if keys.is_empty() {
            return Ok(());
        }
        let deleted = self.store.delete(&self.settings.bucket, keys).await;
        deleted.map_err(|error| object_fault(&error))
    }

    /// The time until which a call may delete objects.
    pub(crate) fn in_time_of_a_call(&self) -> u64 {
        self.clock.now_ms() + CALL_MS
    }

    /// Deletes the objects below `prefix` whose keys are `doomed`, page by page, until `until_ms`: at
    /// least one page, so that repetition ends.
    pub(crate) async fn delete_below(
        &self,
        prefix: &str,
        until_ms: u64,
        doomed: impl Fn(&str) -> bool,
    ) -> Result<DeletedObjects, CallRefusal> {
        let (mut objects, mut after) = (0, String::new());
        loop {
            let page = self.store.list_after(&self.settings.bucket, prefix, &after).await;
            let page = page.map_err(|error| object_fault(&error))?;
            let Some(last) = page.last() else { return Ok(DeletedObjects { objects, all: true }) };
            after.clone_from(&last.key);
            let keys = page.into_iter().map(|object| object.key).filter(|key| doomed(key));
            let keys: Vec<String> = keys.collect();
            self.delete_objects(&keys).await?;
            objects += keys.len() as u64;
            if objects > 0 && self.clock.now_ms() >= until_ms {
                return Ok(DeletedObjects { objects, all: false });
            }
        }
    }
}

//! Objects of the bucket: JSON, lists and deletions, with the store's errors as refusals.

use crate::{
    Coordinator,
    store::{busy, invalid},
};
use gristmill_model::wire::Refusal;
use gristmill_ports::{ObjectError, ObjectInfo, ObjectPath};
use serde::{Serialize, de::DeserializeOwned};

pub(crate) fn object_fault(error: &ObjectError) -> Refusal {
    match error {
        ObjectError::Unavailable(_) | ObjectError::Full(_) | ObjectError::Denied(_) => {
            busy(error.to_string())
        }
        _ => invalid(error.to_string()),
    }
}

impl Coordinator {
    /// The object under `key`, which is `what`; none if there is no object.
    pub(crate) async fn read_json<T: DeserializeOwned>(
        &self,
        key: String,
        what: &str,
    ) -> Result<Option<T>, Refusal> {
        let path = ObjectPath::new(&self.settings.bucket, key);
        match self.objects.get(&path).await {
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
    ) -> Result<(), Refusal> {
        let body = serde_json::to_vec(value).map_err(|error| invalid(error.to_string()))?;
        let path = ObjectPath::new(&self.settings.bucket, key);
        let put = self.objects.put_if_absent(&path, body.into(), put_id).await;
        put.map(|_| ()).map_err(|error| object_fault(&error))
    }

    pub(crate) async fn list_objects(&self, prefix: &str) -> Result<Vec<ObjectInfo>, Refusal> {
        let listed = self.objects.list(&self.settings.bucket, prefix).await;
        listed.map_err(|error| object_fault(&error))
    }

    pub(crate) async fn delete_objects(&self, keys: &[String]) -> Result<(), Refusal> {
        if keys.is_empty() {
            return Ok(());
        }
        let deleted = self.objects.delete(&self.settings.bucket, keys).await;
        deleted.map_err(|error| object_fault(&error))
    }

    /// Deletes the objects below `prefix` whose keys are `doomed`, and returns their number.
    pub(crate) async fn delete_below(
        &self,
        prefix: &str,
        doomed: impl Fn(&str) -> bool,
    ) -> Result<u64, Refusal> {
        let found = self.list_objects(prefix).await?.into_iter().map(|object| object.key);
        let keys: Vec<String> = found.filter(|key| doomed(key)).collect();
        self.delete_objects(&keys).await?;
        Ok(keys.len() as u64)
    }
}

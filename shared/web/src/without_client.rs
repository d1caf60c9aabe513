//! The same names in a program without the HTTP client: every request is refused.

use crate::{Reach, address::is_web};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{
    ChangeStamp, ObjectError, ObjectInfo, ObjectPath, Objects, PutOutcome, without_feature,
};
use std::{ops::Range, sync::Arc};

/// Why `origin`, or any other server, is not read from.
pub(crate) fn refusal(origin: &str) -> Option<String> {
    Some(format!("{origin}: {}", without_feature("web")))
}

/// An object store without files of web servers.
pub struct WithWeb(Arc<dyn Objects>);

impl WithWeb {
    /// # Errors
    /// None.
    pub fn from_env(rest: Arc<dyn Objects>, _reach: Reach) -> Result<Self, String> {
        Ok(Self(rest))
    }

    fn store_of(&self, bucket: &str) -> Result<&dyn Objects, ObjectError> {
        match refusal(bucket).filter(|_| is_web(bucket)) {
            Some(why) => Err(ObjectError::Rejected(why)),
            None => Ok(&*self.0),
        }
    }
}

#[async_trait]
impl Objects for WithWeb {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.0.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.store_of(&path.bucket)?.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.store_of(&path.bucket)?.get_range(path, range, etag).await
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.store_of(&path.bucket)?.change_stamp(path).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.store_of(bucket)?.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.0.delete(bucket, keys).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin_and_key;
    use gristmill_ports::memory::MemoryObjects;

    const REMEDY: &str = "this gristmill was built without the feature `web`: build it without --no-default-features";

    #[test]
    fn addresses_are_refused_with_the_remedy_and_without_secrets() {
        let refused = |text| origin_and_key(text).unwrap().unwrap_err();
        assert_eq!(refused("https://h:8443/a.tar?x=s3cret"), format!("https://h:8443: {REMEDY}"));
        assert!(!refused("https://u:s3cret@h/a").contains("s3cret"));
        assert_eq!(origin_and_key("s3://b/a"), None);
    }

    #[tokio::test]
    async fn web_servers_are_refused_and_other_objects_are_not() {
        let objects = WithWeb::from_env(Arc::new(MemoryObjects::default()), Reach::Any).unwrap();
        let (web, own) = (ObjectPath::new("https://h", "a"), ObjectPath::new("b", "a"));
        objects.put_if_absent(&own, Bytes::from_static(b"x"), "1").await.unwrap();
        assert_eq!(objects.get(&own).await.unwrap(), "x");
        let refused = [
            objects.get(&web).await.map(|_| ()),
            objects.get_range(&web, 0..1, None).await.map(|_| ()),
            objects.list(&web.bucket, "a").await.map(|_| ()),
        ];
        for refused in refused {
            assert!(refused.unwrap_err().to_string().contains(REMEDY));
        }
    }
}

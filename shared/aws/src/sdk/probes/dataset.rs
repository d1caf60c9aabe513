//! Access to a dataset, in any region.

use super::DeploymentProbes;
use crate::sdk::{ProbeError, ReadableObject};
use aws_sdk_s3::config::Region;

impl DeploymentProbes {
    /// Lists one object below `prefix` and reads its first byte, in the region of `bucket`.
    pub async fn dataset(&self, bucket: &str, prefix: &str) -> Result<ReadableObject, ProbeError> {
        let region = self.bucket_region(bucket).await?;
        let config = self.s3.config().to_builder();
        let s3 = aws_sdk_s3::Client::from_conf(match &region {
            Some(region) => config.region(Region::new(region.clone())).build(),
            None => config.build(),
        });
        let place = format!("s3://{bucket}/{prefix}");
        let listed = s3.list_objects_v2().bucket(bucket).prefix(prefix).max_keys(1).send().await;
        let listed = listed.map_err(|error| self.trouble("s3", "ListObjectsV2", &place, &error))?;
        let first = listed.contents.into_iter().flatten().find_map(|object| object.key);
        let key = first.ok_or_else(|| ProbeError::Missing(format!("{place}: no object")))?;
        let read = s3.get_object().bucket(bucket).key(&key).range("bytes=0-0").send().await;
        let place = format!("s3://{bucket}/{key}");
        match read {
            Ok(_) => Ok(ReadableObject { key, region }),
            // An empty object has no such range.
            Err(error) if error.raw_response().is_some_and(|a| a.status().as_u16() == 416) => {
                Ok(ReadableObject { key, region })
            }
            Err(error) => Err(self.trouble("s3", "GetObject", &place, &error)),
        }
    }
}

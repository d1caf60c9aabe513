//! Creates the table and the bucket of a service if they do not exist.

use crate::sdk::{Aws, fault::RequestFault};
use serde_json::json;
use std::time::Duration;

/// Checks of a new table until it must be active.
const TABLE_LOOKS: u32 = 120;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// A table or bucket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProvisionError(String);

impl From<RequestFault> for ProvisionError {
    fn from(fault: RequestFault) -> Self {
        Self(fault.text)
    }
}

impl Aws {
    /// Creates the table `name` like the deployed stack's, unless it exists, and waits until it is active.
    pub async fn make_table(&self, name: &str) -> Result<(), ProvisionError> {
        let client = self.dynamodb();
        let key = |name, kind| json!({ "AttributeName": name, "KeyType": kind });
        let string = |name| json!({ "AttributeName": name, "AttributeType": "S" });
        let table = json!({
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [key("pk", "HASH"), key("sk", "RANGE")],
            "AttributeDefinitions": [string("pk"), string("sk")],
        });
        let is_new = match client.create_table.send(&table).await {
            Ok(_) => true,
            Err(error) => {
                let fault = RequestFault::new("CreateTable", name, &error);
                if !fault.has_code("ResourceInUseException") {
                    return Err(fault.into());
                }
                false
            }
        };
        for _ in 0..TABLE_LOOKS {
            let found = client.describe_table.send(&json!({ "TableName": name })).await;
            let found = found.map_err(|error| RequestFault::new("DescribeTable", name, &error))?;
            let status = found["Table"]["TableStatus"].as_str();
            if status.is_none_or(|status| status == "ACTIVE") {
                return if is_new { self.expire_items(name).await } else { Ok(()) };
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(ProvisionError(format!("table {name} was created but does not become active")))
    }

    async fn expire_items(&self, name: &str) -> Result<(), ProvisionError> {
        let expiry = json!({
            "TableName": name,
            "TimeToLiveSpecification": { "AttributeName": "ttl", "Enabled": true },
        });
        let sent = self.dynamodb().update_time_to_live.send(&expiry).await;
        sent.map_err(|error| RequestFault::new("UpdateTimeToLive", name, &error))?;
        Ok(())
    }

    /// Creates the bucket `name`, unless it exists and belongs to these credentials.
    pub async fn make_bucket(&self, name: &str) -> Result<(), ProvisionError> {
        let client = self.s3();
        if client.head_bucket().bucket(name).send().await.is_ok() {
            return Ok(());
        }
        match client.create_bucket().bucket(name).send().await {
            Ok(_) => Ok(()),
            Err(error) => match RequestFault::new("CreateBucket", name, &error) {
                fault if fault.has_code("BucketAlreadyOwnedByYou") => Ok(()),
                fault => Err(fault.into()),
            },
        }
    }
}

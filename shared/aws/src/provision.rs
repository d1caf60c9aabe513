//! Makes the table and the bucket of a service where they are not there yet.

use crate::{Aws, fault::Fault};
use serde_json::json;
use std::time::Duration;

/// How long a table that was just made may take to be of use.
const TABLE_LOOKS: u32 = 120;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// A table or bucket cannot be made, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProvisionError(String);

impl From<Fault> for ProvisionError {
    fn from(fault: Fault) -> Self {
        Self(fault.text)
    }
}

impl Aws {
    /// Makes the table `name` as the deployed stack has it, unless it is there, and waits until it is of use.
    ///
    /// # Errors
    /// DynamoDB cannot be reached, or refuses.
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
        let is_new = match client.create_table(&table).await {
            Ok(()) => true,
            Err(error) => {
                let fault = Fault::new("CreateTable", name, &error);
                if !fault.has_code("ResourceInUseException") {
                    return Err(fault.into());
                }
                false
            }
        };
        for _ in 0..TABLE_LOOKS {
            let found = client.describe_table(&json!({ "TableName": name })).await;
            let found = found.map_err(|error| Fault::new("DescribeTable", name, &error))?;
            let status = found["Table"]["TableStatus"].as_str();
            if status.is_none_or(|status| status == "ACTIVE") {
                return if is_new { self.expire_items(name).await } else { Ok(()) };
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(ProvisionError(format!("table {name} was made, and does not become active")))
    }

    /// Items that say when they end go then.
    async fn expire_items(&self, name: &str) -> Result<(), ProvisionError> {
        let expiry = json!({
            "TableName": name,
            "TimeToLiveSpecification": { "AttributeName": "ttl", "Enabled": true },
        });
        let sent = self.dynamodb().update_time_to_live(&expiry).await;
        sent.map_err(|error| Fault::new("UpdateTimeToLive", name, &error).into())
    }

    /// Makes the bucket `name`, unless it is there and of these credentials.
    ///
    /// # Errors
    /// S3 cannot be reached, or refuses: the bucket may be somebody else's.
    pub async fn make_bucket(&self, name: &str) -> Result<(), ProvisionError> {
        let client = self.s3();
        if client.head_bucket().bucket(name).send().await.is_ok() {
            return Ok(());
        }
        match client.create_bucket().bucket(name).send().await {
            Ok(_) => Ok(()),
            Err(error) => match Fault::new("CreateBucket", name, &error) {
                fault if fault.has_code("BucketAlreadyOwnedByYou") => Ok(()),
                fault => Err(fault.into()),
            },
        }
    }
}

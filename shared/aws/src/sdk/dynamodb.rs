//! The part of DynamoDB's API that is used, and its JSON.

use crate::sdk::service::{AwsService, AwsServiceError, JsonOperation, ServiceClient};
use aws_config::SdkConfig;
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{interceptors::Intercept, orchestrator::HttpRequest},
};
use aws_smithy_types::body::SdkBody;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;
use std::{collections::HashMap, fmt};

pub(crate) const DYNAMODB: AwsService =
    AwsService { id: "DynamoDB", name: "dynamodb", gov_is_fips: true, retries: None };
const VERSION: &str = "DynamoDB_20120810";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StringAttribute {
    #[serde(rename = "S")]
    pub s: String,
}

/// A whole number; a string of digits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NumberAttribute {
    #[serde(rename = "N", with = "digits")]
    pub n: u64,
}

/// Bytes; base64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BinaryAttribute {
    #[serde(rename = "B", with = "base64")]
    pub b: Vec<u8>,
}

impl From<&str> for StringAttribute {
    fn from(text: &str) -> Self {
        Self { s: text.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrimaryKey {
    pub pk: StringAttribute,
    pub sk: StringAttribute,
}

/// An item as stored; its body is either `json` or `bin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredItem {
    pub pk: StringAttribute,
    pub sk: StringAttribute,
    /// The version.
    pub v: NumberAttribute,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<StringAttribute>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin: Option<BinaryAttribute>,
    /// Expiry in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<NumberAttribute>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetItemInput<'a> {
    pub table_name: &'a str,
    pub key: PrimaryKey,
    pub consistent_read: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetItemOutput {
    pub item: Option<StoredItem>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchGetItemInput<'a> {
    /// By table.
    pub request_items: HashMap<&'a str, WantedKeys>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct WantedKeys {
    pub keys: Vec<PrimaryKey>,
    #[serde(default)]
    pub consistent_read: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchGetItemOutput {
    #[serde(default)]
    pub responses: HashMap<String, Vec<StoredItem>>,
    #[serde(default)]
    pub unprocessed_keys: HashMap<String, WantedKeys>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PutItemInput<'a> {
    pub table_name: &'a str,
    pub item: StoredItem,
    pub condition_expression: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_attribute_values: Option<HashMap<&'a str, NumberAttribute>>,
    pub return_values_on_condition_check_failure: &'a str,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueryInput<'a> {
    pub table_name: &'a str,
    pub key_condition_expression: &'a str,
    pub expression_attribute_values: HashMap<&'a str, StringAttribute>,
    pub consistent_read: bool,
    pub scan_index_forward: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Last key of the preceding page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_start_key: Option<PrimaryKey>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueryOutput {
    #[serde(default)]
    pub items: Vec<StoredItem>,
    pub last_evaluated_key: Option<PrimaryKey>,
}

/// A client. Clones share connections and credentials.
#[derive(Debug, Clone)]
pub(crate) struct DynamoClient {
    /// Takes a [`GetItem`].
    pub get_item: DynamoOperation<GetItemOutput>,
    /// Takes a [`BatchGetItem`].
    pub batch_get_item: DynamoOperation<BatchGetItemOutput>,
    /// Takes a [`PutItem`].
    pub put_item: DynamoOperation<IgnoredAny>,
    /// Takes a [`Query`].
    pub query: DynamoOperation<QueryOutput>,
    pub create_table: DynamoOperation<IgnoredAny>,
    pub describe_table: DynamoOperation<Value>,
    pub update_time_to_live: DynamoOperation<IgnoredAny>,
}

impl DynamoClient {
    /// A client for `endpoint`, or as `sdk` finds DynamoDB. Every request passes `interceptor`.
    pub fn new(
        sdk: &SdkConfig,
        endpoint: Option<&str>,
        interceptor: impl Intercept + 'static,
    ) -> Self {
        let client = ServiceClient::new(DYNAMODB, sdk, endpoint, interceptor);
        Self {
            get_item: DynamoOperation::new(&client, "GetItem"),
            batch_get_item: DynamoOperation::new(&client, "BatchGetItem"),
            put_item: DynamoOperation::new(&client, "PutItem"),
            query: DynamoOperation::new(&client, "Query"),
            create_table: DynamoOperation::new(&client, "CreateTable"),
            describe_table: DynamoOperation::new(&client, "DescribeTable"),
            update_time_to_live: DynamoOperation::new(&client, "UpdateTimeToLive"),
        }
    }
}

/// The item returned with a refused write, if any.
pub(crate) fn met(refusal: &AwsServiceError) -> Result<Option<StoredItem>, serde_json::Error> {
    let body = refusal.raw_response().and_then(|response| response.body().bytes());
    let met: Option<GetItemOutput> = body.map(serde_json::from_slice).transpose()?;
    Ok(met.and_then(|met| met.item))
}

#[derive(Debug, Clone)]
pub(crate) struct DynamoOperation<O> {
    prepared: JsonOperation<O>,
    target: String,
}

impl<O> DynamoOperation<O>
where
    O: DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    fn new(client: &ServiceClient, name: &'static str) -> Self {
        Self { prepared: client.prepare(name), target: format!("{VERSION}.{name}") }
    }

    /// Sends the operation.
    pub async fn send(&self, input: &(impl Serialize + Sync)) -> Result<O, AwsServiceError> {
        let request =
            request(&self.target, input).map_err(AwsServiceError::construction_failure)?;
        self.prepared.invoke(request).await
    }
}

fn request(target: &str, input: &impl Serialize) -> Result<HttpRequest, BoxError> {
    let request = http::Request::builder()
        .method(http::Method::POST)
        .uri("/")
        .header(http::header::CONTENT_TYPE, "application/x-amz-json-1.0")
        .header("x-amz-target", target)
        .body(SdkBody::from(serde_json::to_vec(input)?))?;
    Ok(request.try_into()?)
}

mod digits {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

mod base64 {
    use aws_smithy_types::base64;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        base64::decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

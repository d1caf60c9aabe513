//! The part of DynamoDB's API that is used, and its JSON.

use crate::sdk::service::{Prepared, Service, ServiceClient, ServiceError};
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

pub(crate) const DYNAMODB: Service =
    Service { id: "DynamoDB", name: "dynamodb", gov_is_fips: true, retries: None };
const VERSION: &str = "DynamoDB_20120810";

/// A string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Text {
    #[serde(rename = "S")]
    pub s: String,
}

/// A whole number; a string of digits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Number {
    #[serde(rename = "N", with = "digits")]
    pub n: u64,
}

/// Bytes; base64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Binary {
    #[serde(rename = "B", with = "base64")]
    pub b: Vec<u8>,
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self { s: text.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub pk: Text,
    pub sk: Text,
}

/// An item as stored; its body is either `json` or `bin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredItem {
    pub pk: Text,
    pub sk: Text,
    /// The version.
    pub v: Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin: Option<Binary>,
    /// Expiry in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Number>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetItem<'a> {
    pub table_name: &'a str,
    pub key: Key,
    pub consistent_read: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GotItem {
    pub item: Option<StoredItem>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchGetItem<'a> {
    /// By table.
    pub request_items: HashMap<&'a str, WantedKeys>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct WantedKeys {
    pub keys: Vec<Key>,
    #[serde(default)]
    pub consistent_read: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GotBatch {
    #[serde(default)]
    pub responses: HashMap<String, Vec<StoredItem>>,
    #[serde(default)]
    pub unprocessed_keys: HashMap<String, WantedKeys>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PutItem<'a> {
    pub table_name: &'a str,
    pub item: StoredItem,
    pub condition_expression: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_attribute_values: Option<HashMap<&'a str, Number>>,
    pub return_values_on_condition_check_failure: &'a str,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Query<'a> {
    pub table_name: &'a str,
    pub key_condition_expression: &'a str,
    pub expression_attribute_values: HashMap<&'a str, Text>,
    pub consistent_read: bool,
    pub scan_index_forward: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Last key of the preceding page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_start_key: Option<Key>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Page {
    #[serde(default)]
    pub items: Vec<StoredItem>,
    pub last_evaluated_key: Option<Key>,
}

/// A client. Clones share connections and credentials.
#[derive(Debug, Clone)]
pub(crate) struct DynamoClient {
    /// Takes a [`GetItem`].
    pub get_item: Operation<GotItem>,
    /// Takes a [`BatchGetItem`].
    pub batch_get_item: Operation<GotBatch>,
    /// Takes a [`PutItem`].
    pub put_item: Operation<IgnoredAny>,
    /// Takes a [`Query`].
    pub query: Operation<Page>,
    pub create_table: Operation<IgnoredAny>,
    pub describe_table: Operation<Value>,
    pub update_time_to_live: Operation<IgnoredAny>,
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
            get_item: Operation::new(&client, "GetItem"),
            batch_get_item: Operation::new(&client, "BatchGetItem"),
            put_item: Operation::new(&client, "PutItem"),
            query: Operation::new(&client, "Query"),
            create_table: Operation::new(&client, "CreateTable"),
            describe_table: Operation::new(&client, "DescribeTable"),
            update_time_to_live: Operation::new(&client, "UpdateTimeToLive"),
        }
    }
}

/// The item returned with a refused write, if any.
pub(crate) fn met(refusal: &ServiceError) -> Result<Option<StoredItem>, serde_json::Error> {
    let body = refusal.raw_response().and_then(|response| response.body().bytes());
    let met: Option<GotItem> = body.map(serde_json::from_slice).transpose()?;
    Ok(met.and_then(|met| met.item))
}

#[derive(Debug, Clone)]
pub(crate) struct Operation<O> {
    prepared: Prepared<O>,
    target: String,
}

impl<O> Operation<O>
where
    O: DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    fn new(client: &ServiceClient, name: &'static str) -> Self {
        Self { prepared: client.prepare(name), target: format!("{VERSION}.{name}") }
    }

    pub async fn send(&self, input: &(impl Serialize + Sync)) -> Result<O, ServiceError> {
        let request = request(&self.target, input).map_err(ServiceError::construction_failure)?;
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

//! A DynamoDB table as a [`Table`]: whole items, each write a `PutItem` conditional on the version.
//!
//! An item has `pk`, `sk` (strings), `v` (number, the version) and either `json` (string) or `bin`
//! (binary); an item that may be tidied up has `ttl` (number, Unix seconds).

use crate::fault::Fault;
use async_trait::async_trait;
use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::{put_item::PutItemError, query::builders::QueryFluentBuilder},
    primitives::Blob,
    types::{AttributeValue, KeysAndAttributes, ReturnValuesOnConditionCheckFailure},
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_ports::{Item, ItemKey, Table, TableError, WriteOutcome};
use std::{
    collections::{BTreeSet, HashMap},
    error::Error,
    time::Duration,
};

/// Largest body of an item: DynamoDB's 400 KB, less the keys and the names of the attributes.
const MAX_BODY_BYTES: usize = 390 << 10;
/// Most keys of one `BatchGetItem`.
const BATCH_KEYS: usize = 100;
/// Batches of one read under way at a time.
const BATCHES_AT_ONCE: usize = 4;
/// Rounds for keys a batch came back without, each waiting twice as long as the last.
const BATCH_ROUNDS: u32 = 8;
const BATCH_BACKOFF: Duration = Duration::from_millis(25);

type Attributes = HashMap<String, AttributeValue>;

/// One table.
#[derive(Debug, Clone)]
pub struct DynamoTable {
    client: aws_sdk_dynamodb::Client,
    name: String,
}

impl DynamoTable {
    pub(crate) fn new(client: aws_sdk_dynamodb::Client, name: String) -> Self {
        Self { client, name }
    }

    fn failed<E>(&self, operation: &str, error: &SdkError<E, HttpResponse>) -> TableError
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        let fault = Fault::new(operation, &self.name, error);
        if fault.has_code("ResourceNotFoundException") {
            return TableError::Rejected(format!(
                "there is no table {} ({operation}): deploy the stack again, or set \
                 GRISTMILL_TABLE to the one that is there",
                self.name
            ));
        }
        // Policies change while jobs run: what is not permitted now may be in a moment.
        match fault.is_passing || fault.has_code("AccessDeniedException") {
            true => TableError::Unavailable(fault.text),
            false => TableError::Rejected(fault.text),
        }
    }

    fn stored(&self, attributes: Attributes) -> Result<(ItemKey, Item), TableError> {
        parse(attributes).ok_or_else(|| {
            TableError::Rejected(format!("{} holds an item that is not gristmill's", self.name))
        })
    }

    async fn read_one(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        let request = self.client.get_item().table_name(&self.name).consistent_read(true);
        let request = request.set_key(Some(key_attributes(key)));
        let found = request.send().await.map_err(|error| self.failed("GetItem", &error))?;
        let item = found.item.map(|attributes| self.stored(attributes)).transpose()?;
        Ok(item.map(|(_, item)| item))
    }

    /// At most [`BATCH_KEYS`] different keys.
    async fn read_batch(&self, keys: Vec<Attributes>) -> Result<Vec<(ItemKey, Item)>, TableError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut keys = keys;
        for round in 0..BATCH_ROUNDS {
            let wanted =
                KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true).build();
            let wanted = wanted.map_err(|error| TableError::Rejected(error.to_string()))?;
            let request = self.client.batch_get_item().request_items(&self.name, wanted);
            let answer = request.send().await;
            let answer = answer.map_err(|error| self.failed("BatchGetItem", &error))?;
            let items = answer.responses.into_iter().flatten().flat_map(|(_, items)| items);
            for item in items {
                found.push(self.stored(item)?);
            }
            keys =
                answer.unprocessed_keys.into_iter().flatten().flat_map(|(_, k)| k.keys).collect();
            if keys.is_empty() {
                return Ok(found);
            }
            tokio::time::sleep(BATCH_BACKOFF * 2_u32.pow(round)).await;
        }
        let text = format!("BatchGetItem on {}: {} keys stay unprocessed", self.name, keys.len());
        Err(TableError::Unavailable(text))
    }

    /// A consistent query of one partition.
    fn partition(&self, pk: &str) -> QueryFluentBuilder {
        let request = self.client.query().table_name(&self.name).consistent_read(true);
        request.expression_attribute_values(":pk", string(pk))
    }

    /// Reads pages until they end or `limit` items are found.
    async fn collect(
        &self,
        request: QueryFluentBuilder,
        limit: usize,
    ) -> Result<Vec<(String, Item)>, TableError> {
        let mut pages = request.into_paginator().items().send();
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(attributes) = pages.next().await
        {
            let attributes = attributes.map_err(|error| self.failed("Query", &error))?;
            let (key, item) = self.stored(attributes)?;
            found.push((key.sk, item));
        }
        Ok(found)
    }

    fn refused(
        &self,
        error: SdkError<PutItemError, HttpResponse>,
    ) -> Result<WriteOutcome, TableError> {
        match error {
            SdkError::ServiceError(context)
                if context.err().is_conditional_check_failed_exception() =>
            {
                let PutItemError::ConditionalCheckFailedException(failed) = context.into_err()
                else {
                    return Ok(WriteOutcome::Conflict(None));
                };
                let current = failed.item.map(|attributes| self.stored(attributes)).transpose()?;
                Ok(WriteOutcome::Conflict(current.map(|(_, item)| item)))
            }
            error => Err(self.failed("PutItem", &error)),
        }
    }
}

#[async_trait]
impl Table for DynamoTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, TableError> {
        match keys {
            [] => return Ok(Vec::new()),
            [key] => return Ok(vec![self.read_one(key).await?]),
            _ => {}
        }
        // A batch must not name a key twice.
        let distinct: Vec<_> = keys.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let batches: Vec<Vec<_>> = distinct
            .chunks(BATCH_KEYS)
            .map(|batch| batch.iter().map(|key| key_attributes(key)).collect())
            .collect();
        let found: HashMap<ItemKey, Item> = stream::iter(batches)
            .map(|batch| self.read_batch(batch))
            .buffer_unordered(BATCHES_AT_ONCE)
            .try_fold(HashMap::with_capacity(distinct.len()), |mut found, batch| async move {
                found.extend(batch);
                Ok(found)
            })
            .await?;
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(TableError::Rejected(format!(
                "PutItem on {}: the body of {}/{} has {} bytes, at most {MAX_BODY_BYTES} fit",
                self.name,
                key.pk,
                key.sk,
                body.len()
            )));
        }
        let request = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(item_attributes(key, expected + 1, body, expires_at_s)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let request = match expected {
            0 => request.condition_expression("attribute_not_exists(pk)"),
            _ => request
                .condition_expression("v = :v")
                .expression_attribute_values(":v", number(expected)),
        };
        match request.send().await {
            Ok(_) => Ok(WriteOutcome::Written),
            Err(error) => self.refused(error),
        }
    }

    async fn query(&self, pk: &str, prefix: &str) -> Result<Vec<(String, Item)>, TableError> {
        let request = self.partition(pk);
        let request = match prefix {
            "" => request.key_condition_expression("pk = :pk"),
            _ => request
                .key_condition_expression("pk = :pk AND begins_with(sk, :sk)")
                .expression_attribute_values(":sk", string(prefix)),
        };
        self.collect(request, usize::MAX).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, Item)>, TableError> {
        // DynamoDB rejects such bounds, and every empty string.
        if from > to || to.is_empty() {
            return Ok(Vec::new());
        }
        let request = self.partition(pk).expression_attribute_values(":to", string(to));
        let request = match from {
            "" => request.key_condition_expression("pk = :pk AND sk <= :to"),
            _ => request
                .key_condition_expression("pk = :pk AND sk BETWEEN :from AND :to")
                .expression_attribute_values(":from", string(from)),
        };
        self.collect(request, usize::MAX).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, Item)>, TableError> {
        let request = self
            .partition(pk)
            .key_condition_expression("pk = :pk")
            .scan_index_forward(false)
            // Of a page, which may also end at 1 MB. DynamoDB rejects 0, which is never sent.
            .limit(i32::try_from(limit).unwrap_or(i32::MAX));
        self.collect(request, limit).await
    }
}

fn string(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn key_attributes(key: &ItemKey) -> Attributes {
    let ItemKey { pk, sk } = key.clone();
    HashMap::from([
        ("pk".to_owned(), AttributeValue::S(pk)),
        ("sk".to_owned(), AttributeValue::S(sk)),
    ])
}

fn item_attributes(
    key: &ItemKey,
    version: u64,
    body: Bytes,
    expires_at_s: Option<u64>,
) -> Attributes {
    let mut attributes = key_attributes(key);
    attributes.insert("v".to_owned(), number(version));
    let (name, body) = body_attribute(body);
    attributes.insert(name.to_owned(), body);
    if let Some(expires_at_s) = expires_at_s {
        attributes.insert("ttl".to_owned(), number(expires_at_s));
    }
    attributes
}

/// JSON goes as text, for operators to read in the console; either way it comes back byte by byte.
fn body_attribute(body: Bytes) -> (&'static str, AttributeValue) {
    let body = Vec::from(body);
    if !matches!(body.first(), Some(b'{' | b'[')) {
        return ("bin", AttributeValue::B(Blob::new(body)));
    }
    match String::from_utf8(body) {
        Ok(text) => ("json", AttributeValue::S(text)),
        Err(error) => ("bin", AttributeValue::B(Blob::new(error.into_bytes()))),
    }
}

fn parse(mut attributes: Attributes) -> Option<(ItemKey, Item)> {
    let mut string = |name: &str| match attributes.remove(name) {
        Some(AttributeValue::S(text)) => Some(text),
        _ => None,
    };
    let (pk, sk, json) = (string("pk")?, string("sk")?, string("json"));
    let version = attributes.get("v")?.as_n().ok()?.parse().ok()?;
    let body = match (json, attributes.remove("bin")) {
        (Some(json), _) => Bytes::from(json),
        (None, Some(AttributeValue::B(bin))) => Bytes::from(bin.into_inner()),
        _ => return None,
    };
    Some((ItemKey { pk, sk }, Item { version, body }))
}

#[cfg(test)]
mod tests;

//! A DynamoDB table as a [`Table`]: whole items, each write a `PutItem` conditional on the version.
//!
//! An item has `pk`, `sk` (strings), `v` (number, the version) and either `json` (string) or `bin`
//! (binary); an item that may expire has `ttl` (number, Unix seconds).

use crate::sdk::{
    dynamodb::{
        BatchGetItemInput, BinaryAttribute, DynamoClient, GetItemInput, NumberAttribute,
        PrimaryKey, PutItemInput, QueryInput, StoredItem, StringAttribute, WantedKeys, met,
    },
    fault::RequestFault,
    service::AwsServiceError,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    time::Duration,
};

/// Largest body of an item: DynamoDB's 400 KB, less the keys and the names of the attributes.
const MAX_BODY_BYTES: usize = 390 << 10;
/// Most keys of one `BatchGetItem`.
const BATCH_KEYS: usize = 100;
/// Concurrent batches of one read.
const BATCHES_AT_ONCE: usize = 4;
/// Retries for unprocessed keys of a batch, each after twice the delay of the last.
const BATCH_ROUNDS: u32 = 8;
const BATCH_BACKOFF: Duration = Duration::from_millis(25);

#[derive(Debug, Clone)]
pub(crate) struct DynamoTable {
    pub client: DynamoClient,
    pub name: String,
}

impl DynamoTable {
    fn failed(&self, operation: &str, error: &AwsServiceError) -> TableError {
        let fault = RequestFault::new(operation, &self.name, error);
        if fault.has_code("ResourceNotFoundException") {
            return TableError::Rejected(format!(
                "there is no table {} ({operation}): deploy the stack again, or set \
                 GRISTMILL_TABLE to the existing one",
                self.name
            ));
        }
        // Policies take effect with a delay: permission may be granted shortly.
        if fault.is_passing || fault.has_code("AccessDeniedException") {
            TableError::Unavailable(fault.text)
        } else {
            TableError::Rejected(fault.text)
        }
    }

    async fn read_one(&self, key: &ItemKey) -> Result<Option<TableItem>, TableError> {
        let input =
            GetItemInput { table_name: &self.name, key: wire_key(key), consistent_read: true };
        let found = self.client.get_item.send(&input).await;
        let found = found.map_err(|error| self.failed("GetItem", &error))?;
        found.item.map(|item| self.parsed(item).map(|(_, item)| item)).transpose()
    }

    /// At most [`BATCH_KEYS`] different keys.
    async fn read_batch(
        &self,
        keys: Vec<PrimaryKey>,
    ) -> Result<Vec<(ItemKey, TableItem)>, TableError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut keys = keys;
        for round in 0..BATCH_ROUNDS {
            let wanted = WantedKeys { keys, consistent_read: true };
            let input = BatchGetItemInput { request_items: HashMap::from([(&*self.name, wanted)]) };
            let answer = self.client.batch_get_item.send(&input).await;
            let answer = answer.map_err(|error| self.failed("BatchGetItem", &error))?;
            for item in answer.responses.into_values().flatten() {
                found.push(self.parsed(item)?);
            }
            keys = answer.unprocessed_keys.into_values().flat_map(|left| left.keys).collect();
            if keys.is_empty() {
                return Ok(found);
            }
            tokio::time::sleep(BATCH_BACKOFF * 2_u32.pow(round)).await;
        }
        let text = format!("BatchGetItem on {}: {} keys stay unprocessed", self.name, keys.len());
        Err(TableError::Unavailable(text))
    }

    /// A consistent query of the partition `pk` by `condition`, with the values of its placeholders.
    fn partition<'a>(
        &'a self,
        pk: &str,
        condition: &'a str,
        values: &[(&'a str, &str)],
    ) -> QueryInput<'a> {
        let values = values.iter().map(|(name, value)| (*name, StringAttribute::from(*value)));
        QueryInput {
            table_name: &self.name,
            key_condition_expression: condition,
            expression_attribute_values: values
                .chain([(":pk", StringAttribute::from(pk))])
                .collect(),
            consistent_read: true,
            scan_index_forward: true,
            limit: None,
            exclusive_start_key: None,
        }
    }

    /// Reads pages until the end, or until `limit` items are found.
    async fn collect(
        &self,
        mut query: QueryInput<'_>,
        limit: usize,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        let mut found = Vec::new();
        while found.len() < limit {
            let page = self.client.query.send(&query).await;
            let page = page.map_err(|error| self.failed("Query", &error))?;
            for item in page.items {
                let (key, item) = self.parsed(item)?;
                found.push((key.sk, item));
            }
            query.exclusive_start_key = page.last_evaluated_key;
            if query.exclusive_start_key.is_none() {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn refused(&self, error: &AwsServiceError) -> Result<WriteOutcome, TableError> {
        if !RequestFault::new("PutItem", &self.name, error)
            .has_code("ConditionalCheckFailedException")
        {
            return Err(self.failed("PutItem", error));
        }
        let current = met(error).map_err(|error| self.foreign(&error))?;
        let current = current.map(|item| self.parsed(item)).transpose()?;
        Ok(WriteOutcome::Conflict(current.map(|(_, item)| item)))
    }

    fn parsed(&self, item: StoredItem) -> Result<(ItemKey, TableItem), TableError> {
        let StoredItem { pk, sk, v, json, bin, ttl: _ } = item;
        let body = match (json, bin) {
            (Some(json), _) => Bytes::from(json.s),
            (None, Some(bin)) => Bytes::from(bin.b),
            (None, None) => return Err(self.foreign(&format!("{}/{} has no body", pk.s, sk.s))),
        };
        Ok((ItemKey { pk: pk.s, sk: sk.s }, TableItem { version: v.n, body }))
    }

    fn foreign(&self, reason: &dyn fmt::Display) -> TableError {
        let text = format!("{} holds an item that is not gristmill's: {reason}", self.name);
        TableError::Rejected(text)
    }
}

#[async_trait]
impl Table for DynamoTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        match keys {
            [] => return Ok(Vec::new()),
            [key] => return Ok(vec![self.read_one(key).await?]),
            _ => {}
        }
        // A batch must not contain a key twice.
        let distinct: Vec<_> = keys.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let batches: Vec<Vec<_>> = distinct
            .chunks(BATCH_KEYS)
            .map(|batch| batch.iter().map(|key| wire_key(key)).collect())
            .collect();
        let found: HashMap<ItemKey, TableItem> = stream::iter(batches)
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
        let (condition, values) = match expected {
            0 => ("attribute_not_exists(pk)", None),
            _ => ("v = :v", Some(HashMap::from([(":v", NumberAttribute { n: expected })]))),
        };
        let input = PutItemInput {
            table_name: &self.name,
            item: stored_item(key, expected + 1, body, expires_at_s),
            condition_expression: condition,
            expression_attribute_values: values,
            return_values_on_condition_check_failure: "ALL_OLD",
        };
        match self.client.put_item.send(&input).await {
            Ok(_) => Ok(WriteOutcome::Written),
            Err(error) => self.refused(&error),
        }
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        // DynamoDB rejects such bounds, and every empty string.
        if from > to || to.is_empty() {
            return Ok(Vec::new());
        }
        let query = match from {
            "" => self.partition(pk, "pk = :pk AND sk <= :to", &[(":to", to)]),
            _ => {
                let bounds = [(":from", from), (":to", to)];
                self.partition(pk, "pk = :pk AND sk BETWEEN :from AND :to", &bounds)
            }
        };
        self.collect(query, usize::MAX).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        let mut query = self.partition(pk, "pk = :pk", &[]);
        query.scan_index_forward = false;
        // Per page, which may also end at 1 MB. DynamoDB rejects 0, which is never sent.
        query.limit = Some(u32::try_from(limit).unwrap_or(i32::MAX.unsigned_abs()));
        self.collect(query, limit).await
    }
}

fn wire_key(key: &ItemKey) -> PrimaryKey {
    PrimaryKey { pk: StringAttribute::from(&*key.pk), sk: StringAttribute::from(&*key.sk) }
}

/// Stores JSON as text, so that it is readable in the console, and everything else as bytes.
fn stored_item(key: &ItemKey, version: u64, body: Bytes, expires_at_s: Option<u64>) -> StoredItem {
    let is_json = matches!(body.first(), Some(b'{' | b'['));
    let (json, bin) = match String::from_utf8(Vec::from(body)) {
        Ok(s) if is_json => (Some(StringAttribute { s }), None),
        Ok(s) => (None, Some(BinaryAttribute { b: s.into_bytes() })),
        Err(error) => (None, Some(BinaryAttribute { b: error.into_bytes() })),
    };
    let (v, ttl) = (NumberAttribute { n: version }, expires_at_s.map(|n| NumberAttribute { n }));
    let PrimaryKey { pk, sk } = wire_key(key);
    StoredItem { pk, sk, v, json, bin, ttl }
}

#[cfg(test)]
mod tests;

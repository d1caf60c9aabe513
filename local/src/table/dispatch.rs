//! Runs one DynamoDB request on the engine: JSON in, JSON out, errors in DynamoDB's form.

use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::LocalError;

const TARGET_PREFIX: &str = "DynamoDB_20120810.";

/// Supported operations: those of a table of items, without streams and PartiQL.
const OPERATIONS: [&str; 16] = [
    "BatchGetItem",
    "BatchWriteItem",
    "CreateTable",
    "DeleteItem",
    "DeleteTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "GetItem",
    "ListTables",
    "PutItem",
    "Query",
    "Scan",
    "TransactGetItems",
    "TransactWriteItems",
    "UpdateItem",
    "UpdateTimeToLive",
];

/// The operation named by `X-Amz-Target`, if supported.
pub(super) fn operation(target: &str) -> Option<&'static str> {
    let name = target.strip_prefix(TARGET_PREFIX)?;
    OPERATIONS.into_iter().find(|known| *known == name)
}

/// Whether a condition, of the request or in a transaction, refused the write.
pub(super) fn is_condition(error: &DynoxideError) -> bool {
    matches!(
        error,
        DynoxideError::ConditionalCheckFailedException(..)
            | DynoxideError::TransactionCanceledException(..)
    )
}

/// Runs `operation`; returns its JSON body.
///
/// # Errors
/// The engine's error, which has its own HTTP status and body.
pub(super) fn run(db: &Database, operation: &str, body: &[u8]) -> Result<Vec<u8>, DynoxideError> {
    let result = match operation {
        "BatchGetItem" => call(body, |r| db.batch_get_item(r)),
        "BatchWriteItem" => call(body, |r| db.batch_write_item(r)),
        "CreateTable" => call(body, |r| db.create_table(r)),
        "DeleteItem" => call(body, |r| db.delete_item(r)),
        "DeleteTable" => call(body, |r| db.delete_table(r)),
        "DescribeTable" => call(body, |r| db.describe_table(r)),
        "DescribeTimeToLive" => call(body, |r| db.describe_time_to_live(r)),
        "GetItem" => call(body, |r| db.get_item(r)),
        "ListTables" => call(body, |r| db.list_tables(r)),
        "PutItem" => call(body, |r| db.put_item(r)),
        "Query" => call(body, |r| db.query(r)),
        "Scan" => call(body, |r| db.scan(r)),
        "TransactGetItems" => call(body, |r| db.transact_get_items(r)),
        "TransactWriteItems" => call(body, |r| db.transact_write_items(r)),
        "UpdateItem" => call(body, |r| db.update_item(r)),
        "UpdateTimeToLive" => call(body, |r| db.update_time_to_live(r)),
        other => Err(DynoxideError::SerializationException(format!("unknown operation {other}"))),
    };
    result.map_err(|error| match error {
        // DynamoDB words refusals of a single-item write this way, and the engine leaves it to its caller.
        DynoxideError::EnvelopedValidation(message)
            if matches!(operation, "PutItem" | "UpdateItem" | "DeleteItem") =>
        {
            DynoxideError::ValidationException(format!("1 validation error detected: {message}"))
        }
        DynoxideError::EnvelopedValidation(message) => DynoxideError::ValidationException(message),
        other => other,
    })
}

fn call<Req: DeserializeOwned, Res: Serialize>(
    body: &[u8],
    run: impl FnOnce(Req) -> Result<Res, DynoxideError>,
) -> Result<Vec<u8>, DynoxideError> {
    let request = serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))?;
    let response = run(request)?;
    serde_json::to_vec(&response).map_err(|e| DynoxideError::InternalServerError(e.to_string()))
}

/// The engine's request types mark the kind of a refusal at the start of the message.
fn unreadable(message: &str) -> DynoxideError {
    let message = message.rfind(" at line ").map_or(message, |end| &message[..end]);
    match message.split_once(':') {
        Some(("VALIDATION" | "VALIDATION_AS_READ", rest)) => {
            DynoxideError::ValidationException(rest.trim_start().to_owned())
        }
        Some(("VALIDATION_REQUEST", rest)) => {
            DynoxideError::EnvelopedValidation(rest.trim_start().to_owned())
        }
        Some(("SERIALIZATION" | "SERIALIZATION_AS_READ", rest)) => {
            DynoxideError::SerializationException(rest.trim_start().to_owned())
        }
        _ if message.contains("missing field") || message.contains("unknown variant") => {
            DynoxideError::ValidationException(message.to_owned())
        }
        _ => DynoxideError::SerializationException(message.to_owned()),
    }
}

/// Creates the table unless it exists.
///
/// # Errors
/// [`LocalError::Table`].
pub(super) fn ensure_table(db: &Database, name: &str) -> Result<(), LocalError> {
    let failed = |error: DynoxideError| LocalError::Table(format!("{name}: {error}"));
    let describe = serde_json::json!({"TableName": name}).to_string();
    match run(db, "DescribeTable", describe.as_bytes()) {
        Ok(_) => return Ok(()),
        Err(DynoxideError::ResourceNotFoundException(_)) => {}
        Err(error) => return Err(failed(error)),
    }
    let create = serde_json::json!({
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
    });
    run(db, "CreateTable", create.to_string().as_bytes()).map(drop).map_err(failed)
}

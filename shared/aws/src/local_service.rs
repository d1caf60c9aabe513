//! Admin calls of a local service: mounts, counters, fault injection.

use crate::{
    connect::HttpPool,
    coordinator::{Unread, message, read_answer},
    credentials::CredentialsCache,
    fault::reason,
    signing::sign_json,
};
use gristmill_ports::CallError;
use http::{Method, Uri};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Deadline of one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Time to wait for a restarting service.
const MOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// The admin routes of a local service.
#[derive(Debug)]
pub struct LocalService {
    endpoint: String,
    region: String,
    credentials: CredentialsCache,
    pool: HttpPool,
}

impl LocalService {
    pub(crate) fn new(
        endpoint: &str,
        region: &str,
        credentials: CredentialsCache,
        pool: HttpPool,
    ) -> Self {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Self { endpoint, region: region.to_owned(), credentials, pool }
    }

    /// The address of the service.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Mounts directory `path` as the read-only bucket `name`; waits for a restarting service.
    pub async fn mount(&self, name: &str, path: &Path) -> Result<(), CallError> {
        let body = json!({ "name": name, "path": path });
        let give_up = Instant::now() + MOUNT_PATIENCE;
        loop {
            match self.send(Method::POST, "/gristmill/mounts", Some(body.clone())).await {
                Err(error) if error.is_passing() && Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                outcome => return outcome.map(|_| ()),
            }
        }
    }

    /// All mounts, as bucket name and directory.
    pub async fn mounts(&self) -> Result<Vec<(String, PathBuf)>, CallError> {
        let answer = self.send(Method::GET, "/gristmill/mounts", None).await?;
        let mounts = answer.get("mounts").and_then(Value::as_array).into_iter().flatten();
        let text = |mount: &Value, key| mount.get(key).and_then(Value::as_str).map(str::to_owned);
        let mount = |mount| Some((text(mount, "name")?, text(mount, "path")?.into()));
        Ok(mounts.filter_map(mount).collect())
    }

    /// All counters of the service.
    pub async fn stats(&self) -> Result<Value, CallError> {
        self.send(Method::GET, "/gristmill/stats", None).await
    }

    /// Reason why jobs cannot proceed at the service, in words for its user, if there is one.
    pub async fn trouble(&self) -> Result<Option<String>, CallError> {
        let answer = self.send(Method::GET, "/gristmill/trouble", None).await?;
        Ok(answer.get("trouble").and_then(Value::as_str).map(str::to_owned))
    }

    /// Kills one busy environment of `function`, as a crash would.
    pub async fn kill(&self, function: &str) -> Result<Value, CallError> {
        let body = json!({ "function": function });
        self.send(Method::POST, "/gristmill/kill", Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, CallError> {
        let url = format!("{}{path}", self.endpoint);
        let exchange = async {
            let uri: Uri =
                url.parse().map_err(|_| CallError::Rejected(format!("{url} is no URL")))?;
            let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
            let identity = self.credentials.identity().await;
            let identity = identity.map_err(|error| CallError::Rejected(reason(&error)))?;
            let request = sign_json(method, &uri, &self.region, body, &identity);
            let request = request.map_err(CallError::Rejected)?;
            let answer = self.pool.call(request).await;
            let answer = answer
                .map_err(|error| CallError::Unavailable(format!("{url}: {}", reason(&error))))?;
            let status = answer.status().as_u16();
            let body = read_answer(answer).await.map_err(|error| match error {
                Unread::TooLong => CallError::Rejected(format!("{url}: the answer is too long")),
                Unread::Broken(text) => CallError::Unavailable(format!("{url}: {text}")),
            })?;
            match status {
                200..=299 => serde_json::from_slice(&body).or(Ok(Value::Null)),
                _ => {
                    Err(CallError::Rejected(format!("{url} answers {status}: {}", message(&body))))
                }
            }
        };
        match tokio::time::timeout(DEADLINE, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallError::Unavailable(format!("{url}: no answer in time"))),
        }
    }
}

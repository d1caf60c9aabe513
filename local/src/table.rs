//! The DynamoDB stand-in: the dynoxide engine behind a signature check, on its own thread.
//!
//! SQLite runs on the calling thread, so the table has a single-threaded runtime of its own and blocks no other stand-in.
//! The engine is called directly instead of through its own HTTP server, because that server checks no signatures.

mod dispatch;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use dynoxide::Database;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http_server::{self, BodyError, Reply};
use crate::{Credentials, LocalError, Verifier, ids};

/// DynamoDB's limit of a request's length.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
const CONTENT_TYPE: &str = "application/x-amz-json-1.0";

/// Configuration of a [`TableServer`].
#[derive(Debug)]
pub struct TableConfig {
    /// The SQLite file; in memory when absent.
    pub file: Option<PathBuf>,
    /// Tables to create at start unless they exist: on demand, with string keys `pk` and `sk`.
    pub tables: Vec<String>,
    /// Region that requests must be signed for.
    pub region: String,
    /// Keys that requests must be signed with.
    pub credentials: Credentials,
    /// Listener; any loopback port when absent.
    pub listener: Option<std::net::TcpListener>,
}

/// Requests answered so far, by operation (`GetItem`, `UpdateItem`, ...).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TableStats {
    /// Requests run by the engine, including failed ones.
    pub operations: BTreeMap<String, u64>,
    /// Requests refused by their condition, or a transaction's.
    pub conditions_failed: u64,
    /// Requests with a bad signature: never run.
    pub refused: u64,
}

/// A running table service; stops when dropped.
#[derive(Debug)]
pub struct TableServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    database: Database,
    verifier: Verifier,
    stats: Mutex<TableStats>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl TableServer {
    /// Opens the database, creates missing tables and serves.
    ///
    /// # Errors
    /// [`LocalError::Table`] if the file is not a usable database, [`LocalError::Bind`] or [`LocalError::System`].
    pub fn start(config: TableConfig) -> Result<Self, LocalError> {
        let database = open(config.file.as_deref())?;
        for table in &config.tables {
            dispatch::ensure_table(&database, table)?;
        }
        let listener = match config.listener {
            Some(listener) => listener,
            None => http_server::bind("table", 0)?,
        };
        let system = |source| LocalError::System { what: "the table's thread", source };
        let address = listener.local_addr().map_err(system)?;
        let shared = Arc::new(Shared {
            database,
            verifier: Verifier::new(&config.credentials, &config.region, "dynamodb"),
            stats: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(system)?;
        let (serving, stopping) = (Arc::clone(&shared), stop.clone());
        let thread = std::thread::Builder::new()
            .name("table".into())
            .spawn(move || runtime.block_on(serve(listener, serving, stopping)))
            .map_err(system)?;
        Ok(Self { address, shared, stop, thread: Some(thread) })
    }

    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint URL for an SDK.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A closure that reads the counters without keeping the server alive.
    pub fn stats_reader(&self) -> impl Fn() -> TableStats + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finishes requests in progress and stops. Blocks for up to a second.
    pub fn shutdown(mut self) {
        self.stop_and_join();
    }

    fn stop_and_join(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there was already printed, and there is nothing to undo here.
            let _ = thread.join();
        }
    }
}

impl Drop for TableServer {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

fn open(file: Option<&std::path::Path>) -> Result<Database, LocalError> {
    let opened = match file {
        None => Database::memory(),
        Some(file) => {
            let path = file
                .to_str()
                .ok_or_else(|| LocalError::state(file, "the table's path must be valid UTF-8"))?;
            private(file).map_err(|error| LocalError::state(file, error))?;
            Database::new(path)
        }
    };
    opened.map_err(|error| match file {
        Some(file) => LocalError::state(file, format!("cannot open the table: {error}")),
        None => LocalError::Table(error.to_string()),
    })
}

/// Creates the database file, and makes it and SQLite's files beside it private to their owner. SQLite creates files
/// with the mode of the database.
fn private(file: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    std::fs::File::options().create(true).append(true).mode(0o600).open(file)?;
    for end in ["", "-wal", "-shm", "-journal"] {
        let mut path = file.as_os_str().to_owned();
        path.push(end);
        match std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    let Ok((listener, _)) = http_server::adopt("table", listener) else {
        tracing::error!("the table's listener could not be used");
        return;
    };
    let tasks = TaskTracker::new();
    http_server::serve(listener, stop, tasks.clone(), move |request| {
        let shared = Arc::clone(&shared);
        async move { answer(&shared, request).await }
    })
    .await;
    tasks.close();
    tasks.wait().await;
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Reply {
    let (parts, body) = request.into_parts();
    let body = match http_server::read_body(body, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(BodyError::TooLarge) => {
            return refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                "the request is longer than 16 MiB; send less at once",
            );
        }
        Err(BodyError::Broken) => {
            return refusal(
                StatusCode::BAD_REQUEST,
                "SerializationException",
                "the body broke off",
            );
        }
    };
    if let Err(error) = shared.verifier.verify(&parts, &body, SystemTime::now()) {
        count(shared, |stats| stats.refused += 1);
        return refusal(StatusCode::FORBIDDEN, error.code(), &error.to_string());
    }
    let target = parts.headers.get("x-amz-target").and_then(|t| t.to_str().ok()).unwrap_or("");
    let Some(operation) = dispatch::operation(target) else {
        return refusal(
            StatusCode::BAD_REQUEST,
            "UnknownOperationException",
            &format!("no operation {target:?} here"),
        );
    };
    let result = dispatch::run(&shared.database, operation, &body);
    count(shared, |stats| {
        match stats.operations.get_mut(operation) {
            Some(n) => *n += 1,
            None => drop(stats.operations.insert(operation.to_owned(), 1)),
        }
        stats.conditions_failed += u64::from(result.as_ref().is_err_and(dispatch::is_condition));
    });
    match result {
        Ok(body) => labelled(http_server::typed(StatusCode::OK, CONTENT_TYPE, body)),
        Err(error) => {
            crate::room::note_table(&error.to_string());
            let status =
                StatusCode::from_u16(error.status_code()).unwrap_or(StatusCode::BAD_REQUEST);
            labelled(http_server::typed(status, CONTENT_TYPE, error.to_json()))
        }
    }
}

fn count(shared: &Shared, change: impl FnOnce(&mut TableStats)) {
    change(&mut shared.stats.lock().unwrap_or_else(PoisonError::into_inner));
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Reply {
    let body = serde_json::json!({
        "__type": format!("com.amazon.coral.service#{code}"),
        "message": message,
    });
    labelled(http_server::typed(status, CONTENT_TYPE, body.to_string()))
}

/// Adds a request id for the caller's log, if random bytes are available.
fn labelled(reply: Reply) -> Reply {
    match ids::request_id() {
        Ok(id) => http_server::with_header(reply, "x-amzn-requestid", &id),
        Err(_) => reply,
    }
}

//! Admin routes beside the Invoke API: service discovery, counters, fault injection, mounts.
//!
//! | route | signed | |
//! |---|---|---|
//! | `GET /gristmill/service` | no | where the services are: nothing secret |
//! | `GET /gristmill/stats` | yes | every counter |
//! | `GET /gristmill/trouble` | yes | `{"trouble"}`: reason why jobs cannot proceed here, or null |
//! | `POST /gristmill/kill` | yes | `{"function", "pid"?}`: kills that or one random busy environment |
//! | `GET /gristmill/mounts` | yes | `{"mounts"}`: a list of `{"name", "path"}` of directories mounted as buckets |
//! | `POST /gristmill/mounts` | yes | `{"name", "path"}`: mounts a directory as a read-only bucket |

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::host::Host;
use super::invoke_api::error;
use super::stats::bump;
use crate::http_server::{self, Reply};
use crate::ids;

/// A source of JSON.
pub type JsonSource = Arc<dyn Fn() -> Value + Send + Sync>;

/// Reason why the service cannot proceed, if any.
pub type TroubleSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Mounts a directory under a name; the error is the reason for a refusal.
pub type Mounter = Arc<dyn Fn(&str, &Path) -> Result<(), String> + Send + Sync>;

/// Handlers of the admin routes, provided by the host's owner.
#[derive(Clone, Default)]
pub struct AdminHooks {
    /// Response of `GET /gristmill/service`.
    pub service: Option<JsonSource>,
    /// Members added to `GET /gristmill/stats`, an object.
    pub stats: Option<JsonSource>,
    /// Response of `GET /gristmill/trouble`, and of calls that fail meanwhile.
    pub trouble: Option<TroubleSource>,
    /// Response of `GET /gristmill/mounts`.
    pub mounts: Option<JsonSource>,
    /// Handler of `POST /gristmill/mounts`.
    pub mount: Option<Mounter>,
}

impl AdminHooks {
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.as_ref().and_then(|source| source())
    }
}

impl fmt::Debug for AdminHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminHooks")
            .field("service", &self.service.is_some())
            .field("stats", &self.stats.is_some())
            .field("trouble", &self.trouble.is_some())
            .field("mounts", &self.mounts.is_some())
            .field("mount", &self.mount.is_some())
            .finish()
    }
}

#[derive(Deserialize)]
struct KillRequest {
    function: String,
    pid: Option<u32>,
}

#[derive(Deserialize)]
struct MountRequest {
    name: String,
    path: PathBuf,
}

/// The unsigned route.
pub(crate) fn open_route(host: &Host, parts: &Parts) -> Option<Reply> {
    if parts.method != Method::GET || parts.uri.path() != "/gristmill/service" {
        return None;
    }
    let answer = host.admin.service.as_ref().map_or_else(|| json!({}), |source| source());
    Some(http_server::json(StatusCode::OK, answer.to_string()))
}

/// Routes that require a signature.
pub(crate) fn signed_route(host: &Arc<Host>, parts: &Parts, body: &[u8]) -> Option<Reply> {
    match (&parts.method, parts.uri.path()) {
        (&Method::GET, "/gristmill/stats") => Some(stats(host)),
        (&Method::GET, "/gristmill/trouble") => {
            let answer = json!({ "trouble": host.admin.trouble() });
            Some(http_server::json(StatusCode::OK, answer.to_string()))
        }
        (&Method::GET, "/gristmill/mounts") => {
            let answer = host.admin.mounts.as_ref().map_or_else(|| json!({}), |source| source());
            Some(http_server::json(StatusCode::OK, answer.to_string()))
        }
        (&Method::POST, "/gristmill/kill") => {
            Some(with_request(body, |request| kill(host, &request)))
        }
        (&Method::POST, "/gristmill/mounts") => {
            Some(with_request(body, |request| mount(host, &request)))
        }
        _ => None,
    }
}

fn with_request<R: for<'de> Deserialize<'de>>(body: &[u8], run: impl FnOnce(R) -> Reply) -> Reply {
    match serde_json::from_slice(body) {
        Ok(request) => run(request),
        Err(reason) => {
            error(StatusCode::BAD_REQUEST, "InvalidRequestContentException", &reason.to_string())
        }
    }
}

fn stats(host: &Host) -> Reply {
    let Ok(mut answer) = serde_json::to_value(host.stats()) else {
        return error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "ServiceException",
            "counters not readable",
        );
    };
    let more = host.admin.stats.as_ref().map(|source| source());
    if let (Some(answer), Some(Value::Object(more))) = (answer.as_object_mut(), more) {
        answer.extend(more);
    }
    http_server::json(StatusCode::OK, answer.to_string())
}

fn kill(host: &Host, request: &KillRequest) -> Reply {
    let Some(function) = host.functions.get(&request.function) else {
        let message = format!("no function named {:?} is configured", request.function);
        return error(StatusCode::NOT_FOUND, "ResourceNotFoundException", &message);
    };
    let environments = function.environments();
    let infos: Vec<_> = environments.iter().map(|e| (e, e.info())).collect();
    let eligible: Vec<_> = infos
        .iter()
        .filter(|(_, info)| request.pid.map_or(info.busy, |pid| pid == info.pid))
        .collect();
    let draw = ids::random::<4>().map_or(0, u32::from_le_bytes) as usize;
    let chosen = eligible.get(draw.checked_rem(eligible.len()).unwrap_or(0));
    let killed = chosen.filter(|(environment, _)| function.kill(environment));
    if killed.is_some() {
        bump(&function.counters.kills);
    }
    let answer = json!({
        "function": request.function,
        "pid": killed.map(|(_, info)| info.pid),
        "request_id": killed.and_then(|(_, info)| info.request_id.as_deref()),
    });
    http_server::json(StatusCode::OK, answer.to_string())
}

fn mount(host: &Host, request: &MountRequest) -> Reply {
    let Some(mount) = &host.admin.mount else {
        return error(StatusCode::NOT_FOUND, "ResourceNotFoundException", "no object store here");
    };
    match mount(&request.name, &request.path) {
        Ok(()) => http_server::json(StatusCode::OK, json!({"name": request.name}).to_string()),
        Err(reason) => error(StatusCode::BAD_REQUEST, "InvalidParameterValueException", &reason),
    }
}

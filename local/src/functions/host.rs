//! State shared by the parts of a running host.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admin::AdminHooks;
use super::environment::{Environment, Invocation};
use super::function::{Function, Permit};
use super::journal::Journal;
use super::outcome::Outcome;
use super::stats::HostStats;
use crate::{Credentials, Verifier, ids};

/// Settings.
pub(crate) struct Settings {
    pub credentials: Credentials,
    pub region: String,
    pub account_id: String,
    pub idle_timeout: Duration,
    pub init_timeout: Duration,
    pub retry_delay: Duration,
    pub freeze: bool,
}

/// The shared state of a host.
pub(crate) struct Host {
    pub settings: Settings,
    pub functions: BTreeMap<String, Arc<Function>>,
    pub verifier: Verifier,
    /// Accepted events that have not ended.
    pub journal: Journal,
    pub admin: AdminHooks,
    /// Address at which environments request work.
    pub runtime_api: SocketAddr,
    pub concurrency_limit: u32,
    /// Part of the limit that no function has reserved.
    pub unreserved_limit: u32,
    pub running: AtomicU32,
    /// Running invocations of functions without reserved concurrency.
    pub unreserved: AtomicU32,
    /// Notified whenever an invocation ends.
    pub freed: Notify,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    /// Environments by token. The token authenticates the environment.
    pub environments: RwLock<HashMap<String, Arc<Environment>>>,
}

impl Host {
    pub(crate) fn register(&self, environment: &Arc<Environment>) {
        self.environments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(environment.token.clone(), Arc::clone(environment));
    }

    pub(crate) fn unregister(&self, environment: &Environment) {
        self.environments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&environment.token);
    }

    pub(crate) fn environment(&self, token: &str) -> Option<Arc<Environment>> {
        self.environments.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// An invocation with a fresh request id.
    pub(crate) fn invocation(&self, payload: Bytes) -> std::io::Result<Invocation> {
        Ok(Invocation { request_id: ids::request_id()?, payload, client_context: None })
    }

    /// Runs an admitted invocation in a task of its own, so that a caller that disconnects does not stop it.
    ///
    /// `None` if the host stopped meanwhile.
    pub(crate) async fn run(&self, permit: Permit, invocation: Invocation) -> Option<Outcome> {
        self.tasks.spawn(Function::run(permit, invocation)).await.ok()
    }

    /// Ends idle environments and samples memory until the host stops.
    pub(crate) async fn maintain(self: Arc<Self>) {
        let mut beat = tokio::time::interval(Duration::from_millis(500));
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = beat.tick() => {}
            }
            for function in self.functions.values() {
                function.reap(self.settings.idle_timeout);
                function.sample();
            }
        }
    }

    pub(crate) fn kill_all(&self) {
        for function in self.functions.values() {
            for environment in function.environments() {
                function.kill(&environment);
            }
        }
    }

    pub(crate) fn stats(&self) -> HostStats {
        HostStats {
            functions: self.functions.iter().map(|(name, f)| (name.clone(), f.stats())).collect(),
            concurrent: u64::from(self.running.load(Relaxed)),
            concurrency_limit: u64::from(self.concurrency_limit),
        }
    }
}

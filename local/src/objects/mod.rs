//! The S3 stand-in: objects in a directory, behind the protocol crate `s3s`.
//!
//! It implements the part of S3 that the data plane needs. A put is published whole or not at all, with one winner among
//! any number of `If-None-Match: *`. Bytes are verified against the client's checksums before anybody can read them. A
//! reader keeps the version it started with. Bodies stream in both directions, so memory grows neither with the size of
//! objects nor with their number. Directories of the user can be mounted as read-only buckets.
//!
//! A `GET` of a mounted file that changes meanwhile is cut short.

mod api;
mod beneath;
mod bucket;
mod checksums;
mod conditions;
mod connections;
mod download;
mod failure;
mod listing;
mod mounts;
mod names;
mod output;
mod put;
mod record;
mod stats;
mod store;
mod upload;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use s3s::auth::SimpleAuth;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::path::check_bucket_name;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use stats::ObjectStats;

use crate::LocalError;
use api::Api;
use store::Store;

/// Fits DeleteObjects with a thousand keys of maximal length in the longest XML encoding.
const MAX_XML_BYTES: usize = 8 << 20;

/// An open object store; it listens after [`ObjectServer::serve`]. Clones share the store.
#[derive(Clone)]
pub struct ObjectServer {
    store: Arc<Store>,
    service: S3Service,
}

impl std::fmt::Debug for ObjectServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectServer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl ObjectServer {
    /// A store in `root`, which is created if missing.
    #[must_use]
    pub fn builder(root: impl Into<PathBuf>) -> ObjectServerBuilder {
        ObjectServerBuilder {
            root: root.into(),
            region: "us-east-1".into(),
            credentials: None,
            durable: false,
            buckets: Vec::new(),
            mounts: Vec::new(),
        }
    }

    /// Mounts a directory as a read-only bucket; keys are paths relative to it. Mounting under the same name again
    /// replaces the directory.
    ///
    /// # Errors
    /// [`LocalError::Config`] if the name is invalid or taken by a bucket, [`LocalError::State`] if the directory cannot
    /// be read.
    pub fn mount(&self, name: &str, path: &Path) -> Result<(), LocalError> {
        self.store.mount(name, path)
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> ObjectStats {
        self.store.counters.read()
    }

    /// Accepts connections on the current tokio runtime until `stop`. Open exchanges then have a second to end.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<Serving> {
        let address = listener.local_addr()?;
        let counters = Arc::clone(&self.store.counters);
        let serving = connections::serve(listener, stop, self.service.clone(), counters);
        Ok(Serving { server: self, address, task: tokio::spawn(serving) })
    }
}

/// Settings of a store before it is opened.
#[derive(Debug)]
pub struct ObjectServerBuilder {
    root: PathBuf,
    region: String,
    credentials: Option<crate::Credentials>,
    durable: bool,
    buckets: Vec<String>,
    mounts: Vec<(String, PathBuf)>,
}

impl ObjectServerBuilder {
    /// Key pair that requests must be signed with. Required.
    #[must_use]
    pub fn credentials(mut self, access_key: &str, secret_key: &str) -> Self {
        self.credentials = Some(crate::Credentials {
            access_key_id: access_key.to_owned(),
            secret_access_key: secret_key.to_owned(),
        });
        self
    }

    /// Reported region; `us-east-1` by default. Signatures for any region are accepted.
    #[must_use]
    pub fn region(mut self, region: &str) -> Self {
        region.clone_into(&mut self.region);
        self
    }

    /// A bucket to create if missing.
    #[must_use]
    pub fn bucket(mut self, name: &str) -> Self {
        self.buckets.push(name.to_owned());
        self
    }

    /// As [`ObjectServer::mount`].
    #[must_use]
    pub fn mount_read_only(mut self, name: &str, path: impl Into<PathBuf>) -> Self {
        self.mounts.push((name.to_owned(), path.into()));
        self
    }

    /// Whether a put is synced to disk before it is answered, so that it survives a power cut. Off by default, which is
    /// much faster: a put then survives any end of the process, and after a power cut an object is whole or absent.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Opens the store and removes unfinished uploads of a killed server. Blocks.
    ///
    /// # Errors
    /// [`LocalError::Busy`] if another server uses the directory, [`LocalError::State`] if a directory is unusable,
    /// [`LocalError::Config`] for missing credentials and invalid bucket names.
    pub fn open(self) -> Result<ObjectServer, LocalError> {
        let no_credentials = || LocalError::Config("an object store needs credentials".into());
        let credentials = self.credentials.ok_or_else(no_credentials)?;
        let store = Arc::new(Store::open(&self.root, self.durable)?);
        for name in &self.buckets {
            if !check_bucket_name(name) {
                return Err(LocalError::Config(format!(
                    "{name:?} cannot be a bucket: use 3 to 63 of a-z, 0-9, '-' and '.'"
                )));
            }
            let made = store.make_bucket(name);
            made.map_err(|error| LocalError::state(self.root.join("buckets").join(name), error))?;
        }
        for (name, path) in &self.mounts {
            store.mount(name, path)?;
        }
        let api = Api { store: Arc::clone(&store), region: self.region };
        let mut service = S3ServiceBuilder::new(api);
        let (key, secret) = (credentials.access_key_id, credentials.secret_access_key);
        service.set_auth(SimpleAuth::from_single(key, secret));
        service.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits()))));
        Ok(ObjectServer { store, service: service.build() })
    }
}

/// Memory limits of the protocol crate. Uploads by HTML form are buffered before their signature is checked, so they
/// are refused.
fn limits() -> S3Config {
    let mut config = S3Config::default();
    config.xml_max_body_size = MAX_XML_BYTES;
    config.post_object_max_file_size = 0;
    config.form_max_field_size = 16 << 10;
    config.form_max_fields_size = 64 << 10;
    config.form_max_parts = 64;
    config
}

/// A store that is listening.
#[derive(Debug)]
pub struct Serving {
    server: ObjectServer,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Serving {
    /// The store, to mount directories and to read its counters.
    #[must_use]
    pub fn server(&self) -> &ObjectServer {
        &self.server
    }

    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> ObjectStats {
        self.server.stats()
    }

    /// Resolves after it was stopped and every connection is closed. The directory is then free, unless the store
    /// has other clones.
    pub async fn ended(self) {
        // The task ends only by itself; after a panic nothing is left to end.
        let _ = self.task.await;
    }
}

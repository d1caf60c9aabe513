//! The S3 stand-in: objects in a directory, behind the protocol crate `s3s`.
//!
//! It does what a data plane needs and S3 promises: a put is published whole or not at all, with one winner among any
//! number of `If-None-Match: *`; bytes are checked against what the client said of them before anybody sees them; a
//! reader keeps the version it started with. Bodies stream in both directions, so memory grows neither with the size of
//! objects nor with their number. Directories of the user's can be mounted as read-only buckets.
//!
//! A `GET` of a mounted file is only as constant as the file: one that changes while it is sent is cut short.

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

/// A thousand keys to delete, each as long as a key may be and spelt as awkwardly as XML allows.
const MAX_XML_BYTES: usize = 8 << 20;

/// An object store that is open; it listens once [`ObjectServer::serve`] is called. Clones are the same store.
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
    /// A store kept in `root`, which is made if missing.
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

    /// Offers a directory as a read-only bucket from now on; keys are paths relative to it. The same name again is no
    /// error: the directory given last counts.
    ///
    /// # Errors
    /// [`LocalError::Config`] when the name is no bucket's or a bucket has it, [`LocalError::State`] when the directory
    /// cannot be read.
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
    /// When the listener has no address.
    pub fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<Serving> {
        let address = listener.local_addr()?;
        let counters = Arc::clone(&self.store.counters);
        let serving = connections::serve(listener, stop, self.service.clone(), counters);
        Ok(Serving { server: self, address, task: tokio::spawn(serving) })
    }
}

/// What a store is to be, before it is opened.
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
    /// The key pair requests must be signed with. There is no store without.
    #[must_use]
    pub fn credentials(mut self, access_key: &str, secret_key: &str) -> Self {
        self.credentials = Some(crate::Credentials {
            access_key_id: access_key.to_owned(),
            secret_access_key: secret_key.to_owned(),
        });
        self
    }

    /// The region the store says it is in; `us-east-1` unless said otherwise. Signatures for any region are accepted.
    #[must_use]
    pub fn region(mut self, region: &str) -> Self {
        region.clone_into(&mut self.region);
        self
    }

    /// A bucket to have; made if missing.
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

    /// Whether a put is on the disk before it is answered, so that it survives a power cut. Without, which is the
    /// default and much faster, it survives the end of the process in any way, and after a power cut an object is there
    /// whole or not at all.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Opens the store and sweeps what a killed server left of its uploads. Blocks.
    ///
    /// # Errors
    /// [`LocalError::Busy`] when another server has the directory, [`LocalError::State`] when a directory cannot be used,
    /// [`LocalError::Config`] for missing credentials and for names that are no bucket's.
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

/// What the protocol crate may hold in memory. Uploads by HTML form are collected before their signature counts, so
/// they are not taken at all.
fn limits() -> S3Config {
    let mut config = S3Config::default();
    config.xml_max_body_size = MAX_XML_BYTES;
    config.post_object_max_file_size = 0;
    config.form_max_field_size = 16 << 10;
    config.form_max_fields_size = 64 << 10;
    config.form_max_parts = 64;
    config
}

/// A store that listens.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> ObjectStats {
        self.server.stats()
    }

    /// Resolves once it was told to stop and every connection is closed. The directory is then free, unless the store
    /// has other clones.
    pub async fn ended(self) {
        // It ends by itself only; a panic in it would have nothing left to end.
        let _ = self.task.await;
    }
}

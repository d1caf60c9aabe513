//! The HTTP client, and its combination with another object store.

mod answer;
mod reach;
mod read;
#[cfg(test)]
mod tests;

use crate::{AllowedServers, address::is_web};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{
    BufferPool, ChangeStamp, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    ReadTimeout,
};
use reach::PublicResolver;
use reqwest::{Client, Url, header::HeaderValue, redirect::Policy};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 10;
const AUTHORIZATION: &str = "GRISTMILL_WEB_AUTHORIZATION";

/// Files of web servers.
#[derive(Debug)]
pub struct WebObjects {
    /// Created on first use: reading this machine's certificates takes time.
    client: OnceLock<Result<Client, String>>,
    pub(crate) reach: AllowedServers,
    pub(crate) buffers: BufferPool,
    pub(crate) patience: ReadTimeout,
    /// Authorization header by server.
    authorization: BTreeMap<String, HeaderValue>,
}

impl WebObjects {
    /// Reads from servers within `reach`. `authorization` has a line `HOST VALUE` for each server that
    /// requires credentials, such as `data.example.com Bearer 1234`; they are sent to no other server.
    ///
    /// # Errors
    /// The number of the malformed line, without its content.
    pub fn new(reach: AllowedServers, authorization: &str) -> Result<Self, String> {
        let authorization = parse_authorization(authorization)?;
        Ok(Self {
            client: OnceLock::new(),
            reach,
            buffers: BufferPool::default(),
            patience: ReadTimeout::default(),
            authorization,
        })
    }

    pub(crate) fn client(&self) -> Result<&Client, ObjectError> {
        let made =
            self.client.get_or_init(|| client(self.reach).map_err(|error| error.to_string()));
        let failed = |why| ObjectError::Rejected(format!("no client for web servers: {why}"));
        made.as_ref().map_err(failed)
    }

    pub(crate) fn authorization(&self, host: &str) -> Option<HeaderValue> {
        self.authorization.get(host).cloned()
    }
}

fn client(reach: AllowedServers) -> reqwest::Result<Client> {
    let redirects = Policy::custom(move |attempt| {
        let secure = |url: &reqwest::Url| url.scheme() == "https";
        let downgraded = attempt.previous().last().is_some_and(secure) && !secure(attempt.url());
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if downgraded {
            attempt.error("redirected from https to http")
        } else if let Err(why) = reach.check(attempt.url()) {
            attempt.error(why)
        } else {
            attempt.follow()
        }
    });
    let builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirects)
        .referer(false)
        .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")));
    match reach {
        // A proxy would resolve names itself, past the check.
        AllowedServers::Public => builder.no_proxy().dns_resolver(Arc::new(PublicResolver)),
        AllowedServers::Any => builder,
    }
    .build()
}

fn parse_authorization(text: &str) -> Result<BTreeMap<String, HeaderValue>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let pairs = (1..).zip(lines).map(|(number, line)| {
        let wrong = || format!("{AUTHORIZATION}: line {number} is not `HOST VALUE`");
        let (host, value) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        Ok((host.to_ascii_lowercase(), value))
    });
    pairs.collect()
}

/// The address of an object.
fn url(path: &ObjectPath) -> Result<Url, String> {
    let text = format!("{}/{}", path.bucket, path.key);
    Url::parse(&text).map_err(|error| format!("{path} is not a valid address: {error}"))
}

/// Why `origin` cannot be a server's.
pub(crate) fn refusal(origin: &str) -> Option<String> {
    let why = Url::parse(origin).err()?;
    Some(format!("{origin} is not a valid address: {why}"))
}

/// An object store that also reads files of web servers.
pub struct WebRoutedStore {
    rest: Arc<dyn ObjectStore>,
    web: WebObjects,
}

impl WebRoutedStore {
    pub fn new(rest: Arc<dyn ObjectStore>, web: WebObjects) -> Self {
        Self { rest, web }
    }

    /// Reads credentials from the environment variable `GRISTMILL_WEB_AUTHORIZATION`.
    ///
    /// # Errors
    /// As [`WebObjects::new`].
    pub fn from_env(rest: Arc<dyn ObjectStore>, reach: AllowedServers) -> Result<Self, String> {
        let authorization = std::env::var(AUTHORIZATION).unwrap_or_default();
        Ok(Self::new(rest, WebObjects::new(reach, &authorization)?))
    }
}

/// Marks an error as a web server's.
fn of_server(error: ObjectError) -> ObjectError {
    let named = |why| format!("web server: {why}");
    match error {
        ObjectError::Unavailable(why) => ObjectError::Unavailable(named(why)),
        ObjectError::Full(why) => ObjectError::Full(named(why)),
        ObjectError::Denied(why) => ObjectError::Denied(named(why)),
        ObjectError::Rejected(why) => ObjectError::Rejected(named(why)),
        of_object @ (ObjectError::NotFound(_) | ObjectError::Changed(_)) => of_object,
    }
}

#[async_trait]
impl ObjectStore for WebRoutedStore {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.rest.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        if !is_web(&path.bucket) {
            return self.rest.get(path).await;
        }
        let Some(found) = self.web.look(path).await.map_err(of_server)? else {
            return Err(ObjectError::NotFound(path.clone()));
        };
        self.web.read(path, 0..found.size, Some(&found.etag)).await.map_err(of_server)
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        if is_web(&path.bucket) {
            self.web.read(path, range, etag).await.map_err(of_server)
        } else {
            self.rest.get_range(path, range, etag).await
        }
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        if is_web(&path.bucket) { Ok(None) } else { self.rest.change_stamp(path).await }
    }

    /// Web servers have no listings: finds the file whose key is `prefix`, if it exists.
    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        if is_web(bucket) {
            let found = self.web.look(&ObjectPath::new(bucket, prefix)).await;
            Ok(found.map_err(of_server)?.into_iter().collect())
        } else {
            self.rest.list(bucket, prefix).await
        }
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.rest.delete(bucket, keys).await
    }
}

//! Helpers of the stand-ins' tests: clients, signed requests, process inspection.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its part, and fails by panicking"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use gristmill_local::Credentials;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Path of the tests' function binary, an example of this crate.
pub fn echo_function() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().unwrap().parent().unwrap().join("examples/echo_function");
    assert!(path.exists(), "{} is missing: run `cargo test -p gristmill-local`", path.display());
    path
}

pub fn sdk_credentials(credentials: &Credentials) -> aws_credential_types::Credentials {
    aws_credential_types::Credentials::new(
        &credentials.access_key_id,
        &credentials.secret_access_key,
        None,
        None,
        "test",
    )
}

/// Response to [`request`].
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

/// The headers that sign a request for `lambda`.
pub fn signed_headers(
    credentials: &Credentials,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<(String, String)> {
    let identity = sdk_credentials(credentials).into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region("us-east-1")
        .name("lambda")
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()
        .unwrap()
        .into();
    let signable =
        SignableRequest::new(method, url, headers.iter().copied(), SignableBody::Bytes(body))
            .unwrap();
    let (instructions, _) = sign(signable, &params).unwrap().into_parts();
    let signed = instructions.headers().map(|(n, v)| (n.to_owned(), v.to_owned()));
    headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).chain(signed).collect()
}

/// One request over a connection of its own.
pub async fn request(method: &str, url: &str, headers: &[(String, String)], body: &[u8]) -> Answer {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server may refuse and close before it has read everything.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer");
    let headers = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, headers, body: answer[end + 4..].to_vec() }
}

/// A request signed for `lambda`.
pub async fn signed_request(
    credentials: &Credentials,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let headers = signed_headers(credentials, method, url, headers, body);
    request(method, url, &headers, body).await
}

/// Whether a process exists and is no zombie.
pub fn living(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

/// Waits for a condition that must become true, however long it takes.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A keep-alive connection for many requests; responses need a content length.
pub struct Connection {
    stream: tokio::net::TcpStream,
    host: String,
}

impl Connection {
    pub async fn open(url: &str) -> Self {
        let rest = url.strip_prefix("http://").unwrap();
        let host = rest.split('/').next().unwrap().to_owned();
        let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, host }
    }

    /// Status of the response.
    pub async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> u16 {
        let mut out = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host);
        for (name, value) in headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        out.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        self.stream.write_all(&[out.as_bytes(), body].concat()).await.unwrap();
        let mut answer = Vec::new();
        let end = loop {
            if let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") {
                break end;
            }
            assert_ne!(self.stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
        };
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap();
        let whole = end + 4 + length.parse::<usize>().unwrap();
        while answer.len() < whole {
            assert_ne!(self.stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

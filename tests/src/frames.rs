//! A trainer's side of the framing, written from the README.

use anyhow::{Context, Result, ensure};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// One frame as received.
pub struct Received {
    pub magic: [u8; 4],
    pub epoch: u32,
    pub g: u64,
    pub payload: Vec<u8>,
}

/// A connection to a fetcher that has said hello.
pub struct FrameReader {
    stream: UnixStream,
    /// What the fetcher said first.
    pub hello: serde_json::Value,
}

impl FrameReader {
    /// Connects, waiting until the socket is there, and goes on after what was acknowledged last.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self> {
        let mut reader = Self::open(path, patience)?;
        reader.say_hello(&reader.hello.clone(), None)?;
        Ok(reader)
    }

    /// Connects, and hears the fetcher's hello.
    pub fn open(path: &Path, patience: Duration) -> Result<Self> {
        let give_up = Instant::now() + patience;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
                    let mut reader = Self { stream, hello: serde_json::Value::Null };
                    let Received { magic, payload, .. } = reader.receive()?;
                    let text = String::from_utf8_lossy(&payload).into_owned();
                    ensure!(&magic == b"GMBH", "the fetcher says first: {text}");
                    reader.hello = serde_json::from_str(&text)?;
                    return Ok(reader);
                }
                Err(error) if Instant::now() > give_up => {
                    return Err(error).with_context(|| format!("no fetcher at {}", path.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    pub fn receive(&mut self) -> Result<Received> {
        let mut header = [0; 24];
        self.stream.read_exact(&mut header)?;
        let number = |at: usize| header[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
        let epoch = header[4..].first_chunk().map(|b| u32::from_le_bytes(*b));
        let (epoch, g, length) =
            (epoch.context("epoch")?, number(8).context("g")?, number(16).context("length")?);
        ensure!(length < 1 << 30, "a frame of {length} bytes");
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Received { magic: [header[0], header[1], header[2], header[3]], epoch, g, payload })
    }

    pub fn ack(&mut self, epoch: u32, g: u64) -> Result<()> {
        let mut bytes = b"GMA1".to_vec();
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(g.to_le_bytes());
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Answers with the names of a checkpoint and its position, the first batch that is not in it.
    pub fn say_hello(&mut self, names: &serde_json::Value, at: Option<(u32, u64)>) -> Result<()> {
        let mut said = serde_json::json!({
            "job": names["job"], "dataset": names["dataset"], "fingerprint": names["fingerprint"],
        });
        if let Some((epoch, g)) = at {
            said["epoch"] = epoch.into();
            said["g"] = g.into();
        }
        let text = said.to_string();
        let mut bytes = b"GMAH".to_vec();
        bytes.extend(u32::try_from(text.len())?.to_le_bytes());
        bytes.extend(text.as_bytes());
        Ok(self.stream.write_all(&bytes)?)
    }
}

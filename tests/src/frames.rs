//! A trainer's side of the framing, written from docs/training.md.

use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeMap,
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

/// Batches in the output of `gristmill-fetcher --socket -`, by epoch and batch index.
pub fn read_frames(mut bytes: &[u8]) -> Result<BTreeMap<(u32, u64), Vec<u8>>> {
    let mut batches = BTreeMap::new();
    while let Some((head, behind)) = bytes.split_first_chunk::<24>() {
        let (magic, epoch, g, length) = header(head)?;
        let (payload, next) = behind.split_at_checked(length).context("it ends within a frame")?;
        if &magic == b"GMB1" {
            batches.insert((epoch, g), payload.to_vec());
        }
        bytes = next;
    }
    Ok(batches)
}

/// Magic, epoch, place and length of the payload.
fn header(bytes: &[u8; 24]) -> Result<([u8; 4], u32, u64, usize)> {
    let number = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
    let epoch = bytes[4..].first_chunk().map(|b| u32::from_le_bytes(*b)).context("epoch")?;
    let length = number(16).context("length")?;
    ensure!(length < 1 << 30, "a frame of {length} bytes");
    Ok((
        [bytes[0], bytes[1], bytes[2], bytes[3]],
        epoch,
        number(8).context("batch_index")?,
        length as usize,
    ))
}

/// A connection to a fetcher, after its hello frame.
pub struct FrameReader {
    stream: UnixStream,
    /// The fetcher's hello frame.
    pub hello: serde_json::Value,
}

impl FrameReader {
    /// Connects, waiting for the socket, and resumes after the last acknowledgement.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self> {
        let mut reader = Self::open(path, patience)?;
        reader.say_hello(&reader.hello.clone(), None)?;
        Ok(reader)
    }

    /// Connects, and receives the fetcher's hello.
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
        let mut bytes = [0; 24];
        self.stream.read_exact(&mut bytes)?;
        let (magic, epoch, g, length) = header(&bytes)?;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        Ok(Received { magic, epoch, g, payload })
    }

    pub fn ack(&mut self, epoch: u32, g: u64) -> Result<()> {
        let mut bytes = b"GMA1".to_vec();
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(g.to_le_bytes());
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Answers with a checkpoint's identity and position: the first batch that is not in it.
    pub fn say_hello(&mut self, names: &serde_json::Value, at: Option<(u32, u64)>) -> Result<()> {
        let mut said = serde_json::json!({
            "job": names["job"], "dataset": names["dataset"], "fingerprint": names["fingerprint"],
        });
        if let Some((epoch, g)) = at {
            said["epoch"] = epoch.into();
            said["batch_index"] = g.into();
        }
        let text = said.to_string();
        let mut bytes = b"GMAH".to_vec();
        bytes.extend(u32::try_from(text.len())?.to_le_bytes());
        bytes.extend(text.as_bytes());
        Ok(self.stream.write_all(&bytes)?)
    }
}

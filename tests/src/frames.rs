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

/// A connection to a fetcher.
pub struct FrameReader(UnixStream);

impl FrameReader {
    /// Connects, waiting until the socket is there.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self> {
        let give_up = Instant::now() + patience;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
                    return Ok(Self(stream));
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
        self.0.read_exact(&mut header)?;
        let number = |at: usize| header[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
        let epoch = header[4..].first_chunk().map(|b| u32::from_le_bytes(*b));
        let (epoch, g, length) =
            (epoch.context("epoch")?, number(8).context("g")?, number(16).context("length")?);
        ensure!(length < 1 << 30, "a frame of {length} bytes");
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload)?;
        Ok(Received { magic: [header[0], header[1], header[2], header[3]], epoch, g, payload })
    }

    pub fn ack(&mut self, epoch: u32, g: u64) -> Result<()> {
        let mut bytes = b"GMA1".to_vec();
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(g.to_le_bytes());
        Ok(self.0.write_all(&bytes)?)
    }
}

//! The protocol between `gristmill-fetcher` and a trainer, over a unix socket or a pipe.
//!
//! All numbers little endian. Server to client, a 24-byte header and a payload:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 4 | magic | `GMBH` hello, `GMB1` batch, `GMBR` repeated batch, `GMBC` checkpoint, `GMBE` end of job, `GMBX` error |
//! | 4 | epoch | u32, zero-based |
//! | 8 | batch_index | u64, number of the batch in its epoch |
//! | 8 | payload_len | u64 |
//!
//! `GMBH` comes first; its payload is a JSON object: `job`, `dataset`, `fingerprint` (they identify the
//! batches), `epochs`, `batches` (per epoch, or null), `visitation`. Its epoch and batch_index are the position where
//! the server continues. The payload of a batch is one safetensors blob: the element's tensors with a
//! leading batch dimension, plus `__key__` (u64) and `__copy__` (u32). The payload of `GMBE` is a JSON
//! summary, that of `GMBX` one line of text.
//!
//! Client to server: a hello, before any batch is sent: magic `GMAH`, u32 payload_len, and a JSON object. It
//! holds `job`, `dataset` and `fingerprint` from the trainer's checkpoint (from the server's hello if there is
//! none), and `epoch` and `batch_index` of the first batch that is not in the checkpoint. Without the two the
//! server continues after the last acknowledged batch. Then come acknowledgements, 16 bytes each: magic
//! `GMA1`, epoch u32, batch_index u64: everything up to and including that batch is safe in a checkpoint and is
//! never sent again. A trainer may send `GMAW`, the magic alone, before it reads each frame that follows the
//! hello: it waits for that frame from then on. The fetcher then counts the time between as computing.
//!
//! # Ranks
//!
//! A fetcher of ranks adds to its hello: `seed`, `ranks` (`first`, `count`, `of`, `tail`, `run`: the token in
//! hexadecimal digits), and `from` (`epoch`, `batch_index`), where the run begins as far as is known. A rank says
//! hello with magic `GMH1` instead, and its JSON object adds `rank`, `of`, and optionally `run`: the name of the run
//! as given to the fetcher. Its position is the first batch of the step that it wants next, not of its own batch.
//!
//! A trainer of all batches is rank 0 of 1: it may say either hello, and `GMAH` spares it the frames of ranks.
//!
//! Each step of a rank is two frames. First `GMBC`: its position is the first batch of the step after this one, and
//! its payload the text of the checkpoint that every rank may save once it has trained on this step. Then
//! the rank's batch: `GMB1`, or `GMBR` where the epoch has too few batches for a last step. The batch_index of
//! `GMBR` is the number of the batch that the epoch lacks, its payload another batch of the same step.
//!
//! `GMA1` of a rank names its own batch, or that number: its checkpoint contains this step and all before.
//! `GMAJ`, epoch u32, batch_index u64, names a position as `GMBC` has it: the checkpoint of the whole job at this
//! position is safe, which speaks for all ranks of the fetcher. A rank gets `GMBE` after its last step, and, if it
//! is still there, another once the job is closed: the payload's `closed` distinguishes them.

use crate::cursor::{StreamIdentity, parse_object};
use bytes::Bytes;
use gristmill_model::Epoch;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::replicas::RankReplicas;
use serde::Deserialize;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Length of a frame header, in bytes.
pub const HEADER_BYTES: usize = 24;
/// Most bytes of a client's hello.
const MAX_HELLO_BYTES: u32 = 64 << 10;

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketFrameKind {
    Hello,
    Batch,
    /// A batch given again in place of one that the epoch lacks.
    Repeat,
    Checkpoint,
    End,
    Error,
}

impl SocketFrameKind {
    const fn magic(self) -> [u8; 4] {
        match self {
            Self::Hello => *b"GMBH",
            Self::Batch => *b"GMB1",
            Self::Repeat => *b"GMBR",
            Self::Checkpoint => *b"GMBC",
            Self::End => *b"GMBE",
            Self::Error => *b"GMBX",
        }
    }

    fn from_magic(magic: [u8; 4]) -> Option<Self> {
        let all =
            [Self::Hello, Self::Batch, Self::Repeat, Self::Checkpoint, Self::End, Self::Error];
        all.into_iter().find(|kind| kind.magic() == magic)
    }
}

/// The header of one frame.
pub fn header(kind: SocketFrameKind, at: Cursor, payload_len: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&kind.magic());
    bytes[4..8].copy_from_slice(&at.epoch.to_le_bytes());
    bytes[8..16].copy_from_slice(&at.batch_index.to_le_bytes());
    bytes[16..].copy_from_slice(&(payload_len as u64).to_le_bytes());
    bytes
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    Hello(ClientHello),
    /// Everything up to and including this batch is safe.
    Ack(Cursor),
    /// The checkpoint of the whole job at this position is safe.
    JobAck(Cursor),
    /// The trainer waits for its next frame.
    Waits,
    /// An invalid message, and the mistake in it.
    Invalid(String),
}

/// The job that a client trains on, and where it continues.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClientHello {
    #[serde(flatten)]
    pub identity: StreamIdentity,
    epoch: Option<Epoch>,
    batch_index: Option<u64>,
    /// None of a trainer that takes every batch.
    #[serde(skip)]
    pub rank: Option<RankHello>,
}

/// The fields of a rank's hello that a trainer of all batches does not have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RankHello {
    pub rank: u32,
    /// Number of ranks of its run.
    pub of: u32,
    /// The run, as its launcher calls it.
    pub run: Option<String>,
    /// Which ranks take the same batches, if it says so.
    pub replicas: Option<RankReplicas>,
}

impl ClientHello {
    /// That of a trainer of all batches without a checkpoint.
    pub fn new(identity: StreamIdentity) -> Self {
        Self { identity, epoch: None, batch_index: None, rank: None }
    }

    /// Parses the JSON of a trainer of all batches.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let hello: Self = parse_object(text)?;
        if hello.epoch.is_some() == hello.batch_index.is_some() {
            Ok(hello)
        } else {
            Err("it has one of `epoch` and `batch_index` without the other".to_owned())
        }
    }

    /// Parses the JSON of a rank.
    pub fn parse_of_rank(text: &[u8]) -> Result<Self, String> {
        let hello = Self::parse(text)?;
        let rank = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        Ok(Self { rank: Some(rank), ..hello })
    }

    /// The first batch that the client does not have; none if it has no checkpoint.
    pub fn at(&self) -> Option<Cursor> {
        Some(Cursor { epoch: self.epoch?, batch_index: self.batch_index? })
    }
}

/// The next message of a client; none once it is gone.
pub async fn read_message(reader: &mut (impl AsyncRead + Unpin)) -> Option<ClientMessage> {
    let mut magic = [0; 4];
    reader.read_exact(&mut magic).await.ok()?;
    Some(match &magic {
        b"GMA1" => ClientMessage::Ack(read_cursor(reader).await?),
        b"GMAJ" => ClientMessage::JobAck(read_cursor(reader).await?),
        b"GMAW" => ClientMessage::Waits,
        b"GMAH" => read_hello(reader, ClientHello::parse).await?,
        b"GMH1" => read_hello(reader, ClientHello::parse_of_rank).await?,
        other => {
            ClientMessage::Invalid(format!("what begins with {:?}", String::from_utf8_lossy(other)))
        }
    })
}

async fn read_cursor(reader: &mut (impl AsyncRead + Unpin)) -> Option<Cursor> {
    let epoch = reader.read_u32_le().await.ok()?;
    let batch_index = reader.read_u64_le().await.ok()?;
    Some(Cursor { epoch, batch_index })
}

async fn read_hello(
    reader: &mut (impl AsyncRead + Unpin),
    parse: impl FnOnce(&[u8]) -> Result<ClientHello, String>,
) -> Option<ClientMessage> {
    let length = reader.read_u32_le().await.ok()?;
    if length > MAX_HELLO_BYTES {
        return Some(ClientMessage::Invalid(format!("a hello of {length} bytes")));
    }
    let mut payload = vec![0; length as usize];
    reader.read_exact(&mut payload).await.ok()?;
    Some(match parse(&payload) {
        Ok(hello) => ClientMessage::Hello(hello),
        Err(error) => ClientMessage::Invalid(format!("a hello that cannot be read: {error}")),
    })
}

// Frames of a fetcher, as its client reads them.

/// Most bytes of a frame: a batch is far below.
const MAX_PAYLOAD_BYTES: u64 = 4 << 30;

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFrame {
    pub kind: SocketFrameKind,
    pub at: Cursor,
    pub payload: Bytes,
}

impl SocketFrame {
    /// The payload as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Reads the next frame.
pub async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<SocketFrame> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let mut fields = &header[..];
    let mut magic = [0; 4];
    fields.read_exact(&mut magic).await?;
    let at =
        Cursor { epoch: fields.read_u32_le().await?, batch_index: fields.read_u64_le().await? };
    let bytes = fields.read_u64_le().await?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let kind = SocketFrameKind::from_magic(magic)
        .ok_or_else(|| invalid(format!("{:?} begins no frame", String::from_utf8_lossy(&magic))))?;
    if bytes > MAX_PAYLOAD_BYTES {
        return Err(invalid(format!("a frame of {bytes} bytes")));
    }
    // Memory grows with what arrives, not with what a header says.
    let mut payload = Vec::new();
    reader.take(bytes).read_to_end(&mut payload).await?;
    if payload.len() as u64 == bytes {
        Ok(SocketFrame { kind, at, payload: payload.into() })
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::{header, *};

    fn message(mut bytes: &[u8]) -> Option<ClientMessage> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_message(&mut bytes))
    }

    fn hello(json: &str) -> Option<ClientMessage> {
        message(&[b"GMAH", &(json.len() as u32).to_le_bytes()[..], json.as_bytes()].concat())
    }

    #[test]
    fn headers_hellos_and_acks_are_laid_out_as_documented() {
        let bytes = header(SocketFrameKind::Batch, Cursor::new(2, 3), 4);
        assert_eq!(&bytes, b"GMB1\x02\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(
            message(b"GMA1\x02\0\0\0\x03\0\0\0\0\0\0\0"),
            Some(ClientMessage::Ack(Cursor::new(2, 3)))
        );
        assert_eq!(message(b"GMA1\x02\0\0\0\x03"), None);
        assert_eq!(message(b"GMAW"), Some(ClientMessage::Waits));
        let Some(ClientMessage::Hello(hello)) = hello(
            r#"{"job":"j","dataset":"d","fingerprint":"f","epoch":1,"batch_index":18446744073709551615}"#,
        ) else {
            panic!("no hello")
        };
        assert_eq!(hello.at(), Some(Cursor::new(1, u64::MAX)));
        assert_eq!(hello.identity.job, "j");
    }

    fn rank_hello(json: &str) -> Option<ClientMessage> {
        message(&[b"GMH1", &(json.len() as u32).to_le_bytes()[..], json.as_bytes()].concat())
    }

    #[test]
    fn messages_of_ranks_are_laid_out_as_documented() {
        let magic = |kind| header(kind, Cursor::new(0, 0), 0)[..4].to_vec();
        assert_eq!(magic(SocketFrameKind::Repeat), b"GMBR");
        assert_eq!(magic(SocketFrameKind::Checkpoint), b"GMBC");
        assert_eq!(
            message(b"GMAJ\x02\0\0\0\x03\0\0\0\0\0\0\0"),
            Some(ClientMessage::JobAck(Cursor::new(2, 3)))
        );
        let names = r#""job":"j","dataset":"d","fingerprint":"f""#;
        let read = |rest: &str| rank_hello(&format!("{{{names},{rest}}}"));
        let of_rank = |rest: &str| match read(rest) {
            Some(ClientMessage::Hello(hello)) => hello,
            other => panic!("{other:?}"),
        };
        let hello = of_rank(r#""rank":3,"of":4,"run":"r-1","epoch":1,"batch_index":8"#);
        let RankHello { rank, of, run, replicas } = hello.rank.clone().unwrap();
        assert_eq!((rank, of, run.as_deref(), replicas), (3, 4, Some("r-1"), None));
        let peer = of_rank(r#""rank":3,"of":4,"replicas":"2x1""#).rank.unwrap();
        assert_eq!(peer.replicas, "2x1".parse().ok());
        assert_eq!(hello.at(), Some(Cursor::new(1, 8)));
        assert_eq!(of_rank(r#""rank":0,"of":1"#).rank.unwrap().run, None);
        for rest in [r#""rank":0"#, r#""rank":-1,"of":2"#, r#""rank":0,"of":2,"epoch":1"#] {
            assert!(matches!(read(rest), Some(ClientMessage::Invalid(_))), "{rest}");
        }
    }

    #[test]
    fn everything_else_is_invalid() {
        let names = r#""job":"j","dataset":"d","fingerprint":"f""#;
        for text in [
            "",
            "[1,2]",
            "{}",
            r#"{"job":"j"}"#,
            &format!("{{{names},\"epoch\":1}}"),
            &format!("{{{names},\"epoch\":4294967296,\"batch_index\":1}}"),
            &format!("{{{names},\"epoch\":0,\"batch_index\":-1}}"),
        ] {
            let received = hello(text);
            assert!(matches!(received, Some(ClientMessage::Invalid(_))), "{text}: {received:?}");
        }
        assert!(
            matches!(hello(&format!("{{{names}}}")), Some(ClientMessage::Hello(h)) if h.at().is_none())
        );
        for bytes in [
            &b"GMB1\0\0\0\0\0\0\0\0\0\0\0\0"[..],
            b"GET / HTTP/1.1",
            b"GMAH\xff\xff\xff\xff",
            b"GMH1\xff\xff\xff\xff",
        ] {
            assert!(matches!(message(bytes), Some(ClientMessage::Invalid(_))));
        }
    }

    #[tokio::test]
    async fn frames_are_read_as_they_are_written() {
        let at = Cursor { epoch: 2, batch_index: 7 };
        let mut bytes = header(SocketFrameKind::Batch, at, 3).to_vec();
        bytes.extend_from_slice(b"abc");
        let frame = read_frame(&mut &bytes[..]).await.unwrap();
        assert_eq!(
            frame,
            SocketFrame { kind: SocketFrameKind::Batch, at, payload: Bytes::from_static(b"abc") }
        );
        for length in [0, 10, HEADER_BYTES, bytes.len() - 1] {
            let ended = read_frame(&mut &bytes[..length]).await.unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[tokio::test]
    async fn other_bytes_are_refused() {
        let mut strange = header(SocketFrameKind::End, Cursor::default(), 0);
        strange[..4].copy_from_slice(b"HTTP");
        let mut huge = header(SocketFrameKind::Batch, Cursor::default(), 0);
        huge[16..].fill(0xff);
        for bytes in [strange, huge] {
            let refused = read_frame(&mut &bytes[..]).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }
}

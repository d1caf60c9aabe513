//! Serves a job's batches over a unix socket, or to standard output, in the framing of
//! [`crate::framing`]. One trainer at a time; it may go and come back, and continues after what it
//! acknowledged last.

use crate::{
    Delivery, FetchError, Fetcher,
    framing::{ACK_BYTES, FrameKind, header, parse_ack},
};
use gristmill_types::{Epoch, Visitation};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{UnixListener, UnixStream, unix::OwnedReadHalf},
    sync::mpsc,
};

/// The cursor a restart begins at, kept in the `--state` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    pub epoch: Epoch,
    /// The first batch not acknowledged.
    pub g: u64,
}

/// The cursor's file: written whole or not at all, and before the coordinator hears of it, so that
/// nothing is collected that a restart would ask for.
#[derive(Debug, Clone)]
pub struct CursorFile(Option<PathBuf>);

impl CursorFile {
    pub fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// The cursor as last written; the start where there is no file yet.
    pub fn load(&self) -> io::Result<Cursor> {
        let Some(path) = &self.0 else { return Ok(Cursor::default()) };
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                io::Error::other(format!("{} is not a cursor: {error}", path.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Cursor::default()),
            Err(error) => Err(io::Error::other(format!("cannot read {}: {error}", path.display()))),
        }
    }

    fn save(&self, cursor: Cursor) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let draft = path.with_extension("draft");
        let text = serde_json::to_vec(&cursor)?;
        let written = (|| {
            fs::write(&draft, text)?;
            fs::File::open(&draft)?.sync_all()?;
            fs::rename(&draft, path)
        })();
        written
            .map_err(|error| io::Error::other(format!("cannot write {}: {error}", path.display())))
    }
}

/// How long a run that failed waits for a trainer to tell it why.
const ERROR_PATIENCE: Duration = Duration::from_secs(30);

/// Why serving ended before the job did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// How one trainer's visit ended.
enum Visit {
    /// Everything is delivered and acknowledged.
    Finished,
    /// It went away; the cursor says where it continues.
    Left(Cursor),
}

/// Listens at `path`, for its owner only. A stale socket of a server that died is replaced.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| {
        io::Error::other(format!("cannot listen at {}: {error}", path.display()))
    };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::other(format!("another process serves {}", path.display())));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(named)?;
    Ok(listener)
}

/// Serves trainers one after another until the job is delivered. `start` opens the stream at a
/// cursor: after a trainer left, it is opened anew.
pub async fn serve_socket<F, S>(
    listener: UnixListener,
    cursors: CursorFile,
    mut start: F,
) -> Result<(), ServeError>
where
    F: FnMut(Cursor) -> S,
    S: Future<Output = Result<Fetcher, FetchError>>,
{
    let mut cursor = cursors.load()?;
    let mut fetcher = Some(start(cursor).await?);
    loop {
        let abandoned = async {
            match &fetcher {
                Some(fetcher) => {
                    let error = fetcher.failed().await;
                    tokio::time::sleep(ERROR_PATIENCE).await;
                    error
                }
                None => std::future::pending().await,
            }
        };
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            error = abandoned => return Err(error.into()),
        };
        let opened = match fetcher.take() {
            Some(fetcher) => fetcher,
            None => start(cursor).await?,
        };
        match visit(stream, opened, cursor, &cursors).await? {
            Visit::Finished => return Ok(()),
            Visit::Left(at) => {
                tracing::info!(epoch = at.epoch, g = at.g, "the trainer left");
                cursor = at;
            }
        }
    }
}

async fn visit(
    stream: UnixStream,
    mut fetcher: Fetcher,
    from: Cursor,
    cursors: &CursorFile,
) -> Result<Visit, ServeError> {
    let (reader, mut writer) = stream.into_split();
    let (sender, mut acks) = mpsc::unbounded_channel();
    let reading = tokio::spawn(read_acks(reader, sender));
    let mut cursor = from;
    let outcome = loop {
        tokio::select! {
            biased;
            ack = acks.recv() => match ack {
                Some(ack) => cursor = acknowledge(&fetcher, cursors, cursor, ack)?,
                None => break Ok(Visit::Left(cursor)),
            },
            delivery = fetcher.next() => match delivery {
                Ok(Delivery::Batch(batch)) => {
                    let head = header(FrameKind::Batch, batch.epoch, batch.g, batch.frame.len());
                    if send(&mut writer, &head, &batch.frame).await.is_err() {
                        break Ok(Visit::Left(cursor));
                    }
                }
                Ok(Delivery::EpochEnd(_)) => {}
                Ok(Delivery::End) => break Ok(Visit::Finished),
                Err(error) => {
                    let text = error.to_string();
                    let head = header(FrameKind::Error, cursor.epoch, cursor.g, text.len());
                    // The trainer may be gone as well; the error is reported either way.
                    let _ = send(&mut writer, &head, text.as_bytes()).await;
                    break Err(error.into());
                }
            },
        }
    };
    let outcome = match outcome {
        Ok(Visit::Finished) => finish(fetcher, &mut writer, &mut acks, cursor, cursors).await,
        other => other,
    };
    reading.abort();
    outcome
}

fn acknowledge(
    fetcher: &Fetcher,
    cursors: &CursorFile,
    cursor: Cursor,
    (epoch, g): (Epoch, u64),
) -> io::Result<Cursor> {
    let next = Cursor { epoch, g: g.saturating_add(1) };
    if (next.epoch, next.g) <= (cursor.epoch, cursor.g) {
        return Ok(cursor);
    }
    cursors.save(next)?;
    fetcher.checkpointed(epoch, g);
    Ok(next)
}

/// Says that all is delivered, and waits for the trainer's last acknowledgement before the job is
/// closed: until then a crash of the trainer must be able to begin again.
async fn finish(
    fetcher: Fetcher,
    writer: &mut (impl AsyncWrite + Unpin),
    acks: &mut mpsc::UnboundedReceiver<(Epoch, u64)>,
    mut cursor: Cursor,
    cursors: &CursorFile,
) -> Result<Visit, ServeError> {
    let epochs = fetcher.view().map_or(0, |view| view.spec.epochs);
    let batches = fetcher.snapshot().metrics.batches;
    let summary = serde_json::json!({ "epochs": epochs, "batches": batches }).to_string();
    let head = header(FrameKind::End, epochs, 0, summary.len());
    if send(writer, &head, summary.as_bytes()).await.is_err() {
        return Ok(Visit::Left(cursor));
    }
    // Where no checkpoint says how far the trainer is, nothing is left to wait for.
    let awaited = fetcher.visitation() == Visitation::ExactlyOnce;
    let last = fetcher.last_batch().filter(|_| awaited);
    while last.is_some_and(|(epoch, g)| (cursor.epoch, cursor.g) <= (epoch, g)) {
        match acks.recv().await {
            Some(ack) => cursor = acknowledge(&fetcher, cursors, cursor, ack)?,
            None => return Ok(Visit::Left(cursor)),
        }
    }
    cursors.save(Cursor { epoch: epochs, g: 0 })?;
    fetcher.checkpointed_epochs(epochs);
    fetcher.finish().await?;
    Ok(Visit::Finished)
}

/// Writes every frame to `out`; what is written counts as delivered for good.
pub async fn serve_stream(
    mut fetcher: Fetcher,
    out: &mut (impl AsyncWrite + Unpin),
    cursors: CursorFile,
) -> Result<(), ServeError> {
    let mut cursor = cursors.load()?;
    loop {
        match fetcher.next().await {
            Ok(Delivery::Batch(batch)) => {
                let head = header(FrameKind::Batch, batch.epoch, batch.g, batch.frame.len());
                send(out, &head, &batch.frame).await?;
                cursor = acknowledge(&fetcher, &cursors, cursor, (batch.epoch, batch.g))?;
            }
            Ok(Delivery::EpochEnd(_)) => {}
            Ok(Delivery::End) => break,
            Err(error) => {
                let text = error.to_string();
                let head = header(FrameKind::Error, cursor.epoch, cursor.g, text.len());
                send(out, &head, text.as_bytes()).await?;
                return Err(error.into());
            }
        }
    }
    let epochs = fetcher.view().map_or(0, |view| view.spec.epochs);
    let summary =
        serde_json::json!({ "epochs": epochs, "batches": fetcher.snapshot().metrics.batches })
            .to_string();
    send(out, &header(FrameKind::End, epochs, 0, summary.len()), summary.as_bytes()).await?;
    cursors.save(Cursor { epoch: epochs, g: 0 })?;
    fetcher.checkpointed_epochs(epochs);
    fetcher.finish().await?;
    Ok(())
}

async fn send(out: &mut (impl AsyncWrite + Unpin), head: &[u8], payload: &[u8]) -> io::Result<()> {
    out.write_all(head).await?;
    out.write_all(payload).await?;
    out.flush().await
}

/// Forwards acknowledgements until the trainer closes its end or says something else.
async fn read_acks(mut reader: OwnedReadHalf, acks: mpsc::UnboundedSender<(Epoch, u64)>) {
    let mut bytes = [0; ACK_BYTES];
    while reader.read_exact(&mut bytes).await.is_ok() {
        let Some(ack) = parse_ack(&bytes) else {
            return tracing::warn!("the trainer sent something that is not an acknowledgement");
        };
        if acks.send(ack).is_err() {
            return;
        }
    }
}

//! A connection to a trainer, and the frames that a server sends.

use super::MAX_WAITING_MESSAGES;
use crate::{
    Fetcher,
    cursor::Identity,
    framing::{ClientMessage, FrameKind, header, read_message},
};
use gristmill_model::splits::Cursor;
use std::io;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::mpsc,
    task::AbortHandle,
};

/// A connection: frames to the trainer, and messages from it.
pub(super) struct Link<S> {
    writer: WriteHalf<S>,
    pub(super) messages: mpsc::Receiver<ClientMessage>,
    reading: AbortHandle,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Link<S> {
    pub(super) fn new(mut reader: ReadHalf<S>, writer: WriteHalf<S>) -> Self {
        let (sender, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
        let reading = tokio::spawn(async move {
            while let Some(message) = read_message(&mut reader).await {
                let last = matches!(message, ClientMessage::Invalid(_));
                if sender.send(message).await.is_err() || last {
                    return;
                }
            }
        });
        Self { writer, messages, reading: reading.abort_handle() }
    }

    pub(super) async fn send(
        &mut self,
        kind: FrameKind,
        at: Cursor,
        payload: &[u8],
    ) -> io::Result<()> {
        send(&mut self.writer, kind, at, payload).await
    }
}

impl<S> Drop for Link<S> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

pub(super) async fn send(
    out: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    at: Cursor,
    payload: &[u8],
) -> io::Result<()> {
    out.write_all(&header(kind, at, payload.len())).await?;
    out.write_all(payload).await?;
    out.flush().await
}

/// An error as a frame.
pub fn error_frame(why: &str) -> Vec<u8> {
    [&header(FrameKind::Error, Cursor::default(), why.len())[..], why.as_bytes()].concat()
}

/// The payload of a server's hello.
pub(super) fn hello(fetcher: &Fetcher, identity: &Identity) -> String {
    let view = fetcher.view();
    let epochs = view.as_ref().map(|view| view.spec.epochs);
    serde_json::json!({
        "job": identity.job,
        "dataset": identity.dataset,
        "fingerprint": identity.fingerprint,
        "epochs": epochs,
        "batches": fetcher.batches_per_epoch(),
        "visitation": fetcher.visitation().to_string(),
    })
    .to_string()
}

/// The payload of the last frame.
pub(super) fn summary(fetcher: &Fetcher) -> String {
    let epochs = fetcher.view().map_or(0, |view| view.spec.epochs);
    let batches = fetcher.snapshot().metrics.batches;
    serde_json::json!({ "epochs": epochs, "batches": batches }).to_string()
}

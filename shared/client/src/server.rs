//! Serves a job's batches to a trainer, over a connection or to standard output, in the framing of
//! [`crate::framing`]. One trainer at a time; it may reconnect, and its hello says where it continues.

mod link;
pub mod ranks;
mod visit;

pub use link::error_frame;

use crate::{
    Delivery, FetchError, Fetcher,
    cursor::{CursorStore, Identity, Saved},
    framing::FrameKind,
    report::{Observed, Observer},
};
use gristmill_model::Epoch;
use gristmill_model::splits::Cursor;
use gristmill_model::wire::JobState;
use gristmill_ports::Clock;
use link::{hello, send, summary};
use std::{collections::BTreeMap, io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, mpsc, watch},
};
use visit::{Turns, Visit};

/// How long a connected trainer may take to send its hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// How long processing the remaining messages of a trainer that has left may take.
const LAST_MESSAGES_PATIENCE: Duration = Duration::from_secs(1);
/// How long an ended run waits for a trainer, to notify it.
const END_NOTICE: Duration = Duration::from_secs(10);
/// Interval between observations of a run while it delivers nothing.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most messages of a client that wait to be processed.
const MAX_WAITING_MESSAGES: usize = 64;

/// Why serving ended before the job did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The position in the state file does not belong to this job.
    #[error("{0}")]
    State(String),
    /// The job was already over, or the batches after the stored position were deleted.
    #[error("{0}")]
    Over(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The position stored in `cursors`, which must be of the job `identity`; none if there is none.
///
/// # Errors
/// It cannot be read, or belongs to another job.
pub fn kept(
    cursors: &mut impl CursorStore,
    identity: &Identity,
) -> Result<Option<Cursor>, ServeError> {
    let Some(saved) = cursors.load()? else { return Ok(None) };
    let name = cursors.name().unwrap_or_default();
    match saved.identity.mismatch(identity, &name) {
        None => Ok(Some(saved.cursor)),
        Some(why) => Err(ServeError::State(why)),
    }
}

/// The answer to trainers of a job that is over.
fn done(Identity { job, .. }: &Identity) -> String {
    format!(
        "job {job} is done: all its batches were delivered and acknowledged; train again under another \
         job name"
    )
}

/// A connected trainer, and the seat that it releases when it disconnects.
pub struct Visitor<S> {
    pub stream: S,
    pub seat: Option<OwnedSemaphorePermit>,
}

impl<S> From<S> for Visitor<S> {
    fn from(stream: S) -> Self {
        Self { stream, seat: None }
    }
}

/// The activity of a server, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activity {
    /// No trainer is connected.
    #[default]
    Alone,
    /// A trainer waits for a batch.
    Fetching,
    /// A batch is ready, and its trainer has yet to take it.
    Sending,
    /// All is delivered, and the last batch has yet to be acknowledged.
    LastAck,
    /// The job is being closed.
    Closing,
    /// All is over, and trainers that connect are refused.
    Over,
}

/// A job's stream with the stored position of its trainer.
pub struct Server<C> {
    fetcher: Fetcher,
    clock: Arc<dyn Clock>,
    identity: Identity,
    epochs: Epoch,
    /// Whether the job was done before this server started.
    was_done: bool,
    cursors: C,
    /// The stored position, where a trainer without a checkpoint continues.
    cursor: Cursor,
    /// Start of the stream opened last, until a batch is taken from it.
    opened: Option<Cursor>,
    /// Whether the connected trainer sent no position of its own.
    begun_as_kept: bool,
    /// The last batch sent to the connected trainer, by epoch.
    sent: BTreeMap<Epoch, u64>,
    turns: Turns,
    activity: watch::Sender<Activity>,
    /// Counts the deliveries to trainers, for a report.
    observer: Option<Observer>,
}

impl<C: CursorStore> Server<C> {
    /// `fetcher` must be open at the position stored in `cursors`, which [`Server::position`] has checked, and
    /// not announced.
    pub fn new(fetcher: Fetcher, cursors: C, cursor: Cursor) -> Result<Self, FetchError> {
        let unknown = || FetchError::Refused("the job is not known".to_owned());
        let view = fetcher.view().ok_or_else(unknown)?;
        Ok(Self {
            clock: fetcher.clock(),
            identity: Identity::of(&view),
            epochs: view.spec.epochs,
            was_done: view.state == JobState::Done,
            cursors,
            cursor,
            opened: Some(cursor),
            begun_as_kept: false,
            sent: BTreeMap::new(),
            turns: Turns::default(),
            activity: watch::Sender::default(),
            observer: None,
            fetcher,
        })
    }

    /// Sets the observer that counts the deliveries to trainers.
    pub fn observed_by(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The deliveries to trainers, if they were observed.
    pub fn into_observed(self) -> Option<Observed> {
        Some(self.observer?.finish(&self.fetcher.snapshot(), self.fetcher.view()))
    }

    /// The stream that is served.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// A receiver of the server's activity.
    pub fn activity(&self) -> watch::Receiver<Activity> {
        self.activity.subscribe()
    }

    /// The position stored in `cursors` for the job `identity`; the start if there is none.
    pub fn position(cursors: &mut C, identity: &Identity) -> Result<Cursor, ServeError> {
        Ok(kept(cursors, identity)?.unwrap_or_default())
    }

    /// Serves trainers one after another until the job is delivered.
    pub async fn serve<S>(
        &mut self,
        mut visitors: mpsc::Receiver<Visitor<S>>,
    ) -> Result<(), ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        self.save(self.cursor)?;
        loop {
            let visitor = tokio::select! {
                biased;
                visitor = visitors.recv() => visitor,
                ended = self.unattended() => return ended,
            };
            let Some(Visitor { stream, seat }) = visitor else {
                return Err(io::Error::other("nobody can connect any more").into());
            };
            let outcome = self.visit(stream).await;
            self.activity.send_replace(Activity::Alone);
            drop(seat);
            if let Visit::Finished = outcome? {
                return self.close().await;
            }
            let Cursor { epoch, batch_index } = self.cursor;
            tracing::info!(epoch, batch_index, "the trainer left");
        }
    }

    /// Resolves when nothing is left to serve, and trainers had time to connect and be notified.
    async fn unattended(&mut self) -> Result<(), ServeError> {
        let ended = match self.fetcher.located().await {
            Ok(()) if self.fetcher.is_at_end() => self.close_alone().await,
            Ok(()) => Err(tokio::select! {
                biased;
                error = self.fetcher.failed() => error.into(),
                () = self.fetcher.job_done() => ServeError::Over(self.done()),
            }),
            Err(_) if self.was_done => Err(ServeError::Over(self.done())),
            Err(error @ FetchError::Misplaced(_)) => return Err(self.of_kept(error)),
            Err(error) => Err(error.into()),
        };
        if let Err(ServeError::State(_)) = ended {
            return ended;
        }
        let reason = ended.as_ref().map_or_else(ToString::to_string, |()| self.done());
        let seconds = END_NOTICE.as_secs();
        tracing::warn!("{reason} (waiting {seconds} s for a trainer, to report this to it)");
        self.activity.send_replace(Activity::Over);
        self.clock.sleep(END_NOTICE).await;
        ended
    }

    /// Closes a job whose batches were all acknowledged before; its trainer need not reconnect for that.
    async fn close_alone(&mut self) -> Result<(), ServeError> {
        if !self.was_done {
            let job = &self.identity.job;
            tracing::info!(
                "every batch of job {job} is acknowledged: closing it without its trainer"
            );
        }
        self.activity.send_replace(Activity::Closing);
        self.fetcher.announce();
        self.fetcher.admitted().await.map_err(|error| self.of_kept(error))?;
        self.close().await
    }

    async fn open_at(&mut self, cursor: Cursor) {
        self.fetcher.reopen(cursor).await;
        self.opened = Some(cursor);
    }

    fn done(&self) -> String {
        done(&self.identity)
    }

    async fn observe(&mut self, delivery: &Delivery) -> Result<(), ServeError> {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        let observed = observer.delivered(delivery, &self.fetcher).await;
        observed.map_err(|failure| io::Error::other(failure.to_string()).into())
    }

    fn look(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.look(&self.fetcher);
        }
    }

    /// An error about the stored position, with the name of its store.
    fn of_kept(&self, error: FetchError) -> ServeError {
        let named = |why: String| match self.cursors.name() {
            Some(name) => format!("{name}: {why}"),
            None => why,
        };
        match error {
            FetchError::Misplaced(why) => ServeError::State(named(why)),
            FetchError::Collected(_) if self.fetcher.is_job_done() => ServeError::Over(self.done()),
            FetchError::Collected(why) => ServeError::Over(named(why)),
            error => error.into(),
        }
    }

    fn save(&mut self, cursor: Cursor) -> io::Result<()> {
        let saved = Saved { identity: self.identity.clone(), cursor };
        self.cursors.save(&saved)?;
        self.cursor = cursor;
        Ok(())
    }

    /// Closes the job once everything is delivered and acknowledged. Until then a crashed trainer must be able
    /// to resume.
    async fn close(&mut self) -> Result<(), ServeError> {
        self.activity.send_replace(Activity::Closing);
        self.save(Cursor::start_of(self.epochs))?;
        self.fetcher.checkpointed_epochs(self.epochs);
        Ok(self.fetcher.settle().await?)
    }

    /// Writes every frame to `out`, starting with a hello. Written batches count as acknowledged.
    pub async fn write_all(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), ServeError> {
        self.save(self.cursor)?;
        let hello = hello(&self.fetcher, &self.identity);
        send(out, FrameKind::Hello, self.cursor, hello.as_bytes()).await?;
        if let Err(error) = self.write_batches(out).await {
            let why = error.to_string();
            send(out, FrameKind::Error, self.cursor, why.as_bytes()).await?;
            return Err(error);
        }
        let end = Cursor::start_of(self.epochs);
        send(out, FrameKind::End, end, summary(&self.fetcher).as_bytes()).await?;
        self.close().await
    }

    async fn write_batches(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), ServeError> {
        self.fetcher.located().await.map_err(|error| self.of_kept(error))?;
        self.fetcher.announce();
        self.fetcher.admitted().await.map_err(|error| self.of_kept(error))?;
        self.activity.send_replace(Activity::Fetching);
        loop {
            let delivery = tokio::select! {
                biased;
                delivery = self.fetcher.next() => delivery?,
                () = look_due(self.observer.is_some()) => {
                    self.look();
                    continue;
                }
            };
            self.observe(&delivery).await?;
            match delivery {
                Delivery::Batch(batch) => {
                    let at = batch.cursor();
                    send(out, FrameKind::Batch, at, &batch.frame).await?;
                    self.save(at.next())?;
                    self.fetcher.checkpointed(at);
                }
                Delivery::EpochEnd(_) | Delivery::OfOthers { .. } => {}
                Delivery::End => return Ok(()),
            }
        }
    }
}

/// Resolves when the next observation is due; never without an observer.
async fn look_due(is_observed: bool) {
    match is_observed {
        true => tokio::time::sleep(LOOK_EVERY).await,
        false => std::future::pending().await,
    }
}

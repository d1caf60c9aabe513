//! Serves a job's batches to a trainer, over a connection or to standard output, in the framing of
//! [`crate::framing`]. One trainer at a time; it may go and come back, and says where it goes on.

use crate::{
    Delivery, FetchError, Fetcher,
    cursor::{Cursor, CursorStore, Identity, Saved},
    framing::{ClientHello, FrameKind, Said, header, read_said},
};
use gristmill_model::wire::JobState;
use gristmill_model::{Epoch, Visitation};
use gristmill_ports::Clock;
use std::{collections::BTreeMap, io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::{OwnedSemaphorePermit, mpsc, watch},
    task::AbortHandle,
};

/// How long a trainer that has connected may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// How long the last words of a trainer that has left may take.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a run that has ended waits for a trainer to tell it so.
const FAREWELL: Duration = Duration::from_secs(10);
/// What a client has said and nobody has heard yet, at most.
const UNHEARD: usize = 64;

/// Why serving ended before the job did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The position in the state file is none of this job.
    #[error("{0}")]
    State(String),
    /// The job was over before, or what follows the position that is kept has been deleted.
    #[error("{0}")]
    Over(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A trainer that has connected, and the seat that it gives up when it leaves.
pub struct Visitor<S> {
    pub stream: S,
    pub seat: Option<OwnedSemaphorePermit>,
}

impl<S> From<S> for Visitor<S> {
    fn from(stream: S) -> Self {
        Self { stream, seat: None }
    }
}

/// How one trainer's visit ended.
enum Visit {
    /// Everything is delivered and acknowledged.
    Finished,
    /// It went away, or was turned away; another one may come.
    Left,
}

/// Why a visit ends early.
enum Parting {
    /// The trainer is gone.
    Gone,
    /// It is told why it gets nothing.
    TurnedAway(String),
    /// Nobody gets anything any more.
    Ended(ServeError),
}

impl From<io::Error> for Parting {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

/// What a server does, for whoever watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activity {
    /// Nobody is connected.
    #[default]
    Alone,
    /// A trainer waits for a batch.
    Fetching,
    /// A batch is ready, and its trainer has yet to take it.
    Sending,
    /// All is delivered, and the last batch has yet to be acknowledged.
    LastAck,
    /// The coordinator is told that all is done.
    Closing,
    /// All is over; a trainer that comes is told so.
    Over,
}

/// A job's stream with the position that is kept for its trainer.
pub struct Server<C> {
    fetcher: Fetcher,
    clock: Arc<dyn Clock>,
    identity: Identity,
    epochs: Epoch,
    /// It was before this server came.
    was_done: bool,
    cursors: C,
    /// As kept: where a trainer without a checkpoint goes on.
    cursor: Cursor,
    /// Where the stream begins that was opened last, until something was taken of it.
    opened: Option<Cursor>,
    /// The trainer which is connected named no position of its own.
    begun_as_kept: bool,
    /// The last batch of each epoch that the trainer which is connected was sent.
    sent: BTreeMap<Epoch, u64>,
    activity: watch::Sender<Activity>,
}

impl<C: CursorStore> Server<C> {
    /// `fetcher` is opened at the position that `cursors` keep, which [`Server::position`] has checked, and
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
            activity: watch::Sender::default(),
            fetcher,
        })
    }

    /// What it does from now on.
    pub fn activity(&self) -> watch::Receiver<Activity> {
        self.activity.subscribe()
    }

    /// The position that `cursors` keep for the job `identity`; the start if they keep none.
    pub fn position(cursors: &mut C, identity: &Identity) -> Result<Cursor, ServeError> {
        let Some(saved) = cursors.load()? else { return Ok(Cursor::default()) };
        let name = cursors.name().unwrap_or_default();
        match saved.identity.mismatch(identity, &name) {
            None => Ok(saved.cursor),
            Some(why) => Err(ServeError::State(why)),
        }
    }

    /// Serves trainers one after another until the job is delivered.
    pub async fn serve<S>(
        mut self,
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
            tracing::info!(epoch = self.cursor.epoch, g = self.cursor.g, "the trainer left");
        }
    }

    /// Resolves when there is nothing to serve, a while after the last trainer could have been told so.
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
        let told = ended.as_ref().map_or_else(ToString::to_string, |()| self.done());
        let seconds = FAREWELL.as_secs();
        tracing::warn!("{told} (a trainer that connects within {seconds} s is told so)");
        self.activity.send_replace(Activity::Over);
        self.clock.sleep(FAREWELL).await;
        ended
    }

    /// Closes a job of which everything was acknowledged before: its trainer need not come back for that.
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

    async fn visit<S>(&mut self, stream: S) -> Result<Visit, ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        self.sent.clear();
        let (reader, writer) = tokio::io::split(stream);
        let mut link = Link::new(reader, writer);
        let parting = match self.greet(&mut link).await {
            Ok(begins) => match self.deliver(&mut link, begins).await {
                Ok(()) => return Ok(Visit::Finished),
                Err(parting) => parting,
            },
            Err(parting) => parting,
        };
        match parting {
            Parting::Gone => self.hear_out(&mut link).await?,
            Parting::TurnedAway(why) => {
                tracing::warn!("a trainer was turned away: {why}");
                self.tell(&mut link, &why).await;
            }
            Parting::Ended(error) => {
                self.tell(&mut link, &error.to_string()).await;
                return Err(error);
            }
        }
        // The next one may have no checkpoint, and where this one began is not where to go on.
        if self.opened.is_none_or(|opened| opened != self.cursor) {
            self.open_at(self.cursor).await;
        }
        Ok(Visit::Left)
    }

    /// Hears what a trainer said before it left: a batch that is written to it fails before that is read.
    async fn hear_out<S>(&mut self, link: &mut Link<S>) -> Result<(), ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let until = self.clock.monotonic() + LAST_WORDS;
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            let said = tokio::select! {
                biased;
                said = link.said.recv() => said,
                () = self.clock.sleep(left) => None,
            };
            match said.map(|said| self.hear(said)) {
                Some(Ok(())) => {}
                Some(Err(Parting::Ended(error))) => return Err(error),
                // Nobody is left to be turned away.
                Some(Err(Parting::TurnedAway(_) | Parting::Gone)) | None => return Ok(()),
            }
        }
    }

    /// Tells a trainer why it gets no more; it may have left, or stopped reading.
    async fn tell<S>(&self, link: &mut Link<S>, why: &str)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        tokio::select! {
            biased;
            _ = link.send(FrameKind::Error, self.cursor, why.as_bytes()) => {}
            () = self.clock.sleep(HELLO_PATIENCE) => {}
        }
    }

    async fn open_at(&mut self, cursor: Cursor) {
        self.fetcher.reopen((cursor.epoch, cursor.g)).await;
        self.opened = Some(cursor);
    }

    /// Finds out where the trainer begins, and has the stream begin there; answers that.
    async fn greet<S>(&mut self, link: &mut Link<S>) -> Result<Cursor, Parting>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let hello = hello(&self.fetcher, &self.identity);
        link.send(FrameKind::Hello, self.cursor, hello.as_bytes()).await.map_err(gone)?;
        let said = tokio::select! {
            biased;
            said = link.said.recv() => said.ok_or(Parting::Gone)?,
            () = self.clock.sleep(HELLO_PATIENCE) => return Err(Parting::TurnedAway(format!(
                "no hello within {} s: a trainer answers the fetcher's hello with its own, and gets batches then",
                HELLO_PATIENCE.as_secs()
            ))),
        };
        let hello = match said {
            Said::Hello(hello) => hello,
            Said::Ack(..) => {
                return Err(Parting::TurnedAway(
                    "an acknowledgement before a hello: a trainer says first which job its checkpoint is of"
                        .to_owned(),
                ));
            }
            Said::Nonsense(what) => return Err(nonsense(&what)),
        };
        self.begun_as_kept = hello.at().is_none();
        let begins = self.beginning(&hello)?;
        let exactly = self.fetcher.visitation() == Visitation::ExactlyOnce;
        if self.opened.take_if(|opened| !exactly || *opened == begins).is_none() {
            self.open_at(begins).await;
            self.opened = None;
        }
        self.activity.send_replace(Activity::Fetching);
        self.located(link).await?;
        Ok(begins)
    }

    /// Where a trainer begins that said `hello`.
    fn beginning(&self, hello: &ClientHello) -> Result<Cursor, Parting> {
        if let Some(why) = hello.identity.mismatch(&self.identity, "the trainer's checkpoint") {
            return Err(Parting::TurnedAway(why));
        }
        match hello.at() {
            None if self.was_done => Err(Parting::TurnedAway(self.done())),
            at => Ok(at.unwrap_or(self.cursor)),
        }
    }

    fn done(&self) -> String {
        let job = &self.identity.job;
        format!(
            "job {job} is done: all its batches were delivered and acknowledged; train again under another \
             job name"
        )
    }

    /// Waits until it is known that the trainer can begin where it says.
    async fn located<S>(&mut self, link: &mut Link<S>) -> Result<(), Parting> {
        loop {
            let said = tokio::select! {
                biased;
                located = self.fetcher.located() => return located.map_err(|error| self.part(error)),
                said = link.said.recv() => said.ok_or(Parting::Gone)?,
            };
            self.hear(said)?;
        }
    }

    /// Waits until the coordinator has let the trainer in.
    async fn admitted<S>(&mut self, link: &mut Link<S>) -> Result<(), Parting> {
        loop {
            let said = tokio::select! {
                biased;
                admitted = self.fetcher.admitted() => return admitted.map_err(|error| self.part(error)),
                said = link.said.recv() => said.ok_or(Parting::Gone)?,
            };
            self.hear(said)?;
        }
    }

    /// Delivers from `begins` to the end of the job, and waits for the last acknowledgement.
    async fn deliver<S>(&mut self, link: &mut Link<S>, begins: Cursor) -> Result<(), Parting>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        // A trainer's word is kept before the coordinator hears of it; where it goes back, after that.
        if begins > self.cursor {
            self.save(begins)?;
        }
        self.fetcher.announce();
        self.admitted(link).await?;
        if begins < self.cursor {
            self.save(begins)?;
        }
        loop {
            tokio::select! {
                biased;
                said = link.said.recv() => self.hear(said.ok_or(Parting::Gone)?)?,
                delivery = self.fetcher.next() => match delivery {
                    Ok(Delivery::Batch(batch)) => {
                        let at = Cursor { epoch: batch.epoch, g: batch.g };
                        self.sent.insert(at.epoch, at.g);
                        self.activity.send_replace(Activity::Sending);
                        link.send(FrameKind::Batch, at, &batch.frame).await.map_err(gone)?;
                        self.activity.send_replace(Activity::Fetching);
                    }
                    Ok(Delivery::EpochEnd(_)) => {}
                    Ok(Delivery::End) => break,
                    Err(error) => return Err(self.part(error)),
                },
            }
        }
        let end = Cursor { epoch: self.epochs, g: 0 };
        link.send(FrameKind::End, end, summary(&self.fetcher).as_bytes()).await.map_err(gone)?;
        self.activity.send_replace(Activity::LastAck);
        // Where no checkpoint says how far the trainer is, nothing is left to wait for.
        let exactly = self.fetcher.visitation() == Visitation::ExactlyOnce;
        while exactly && self.last_sent().is_some_and(|last| self.cursor <= last) {
            let said = link.said.recv().await;
            self.hear(said.ok_or(Parting::Gone)?)?;
        }
        Ok(())
    }

    /// Whether an error ends this visit or all of them: a position that is kept here is every trainer's.
    fn part(&self, error: FetchError) -> Parting {
        match error {
            FetchError::Collected(_) if self.begun_as_kept && self.cursors.name().is_some() => {
                Parting::Ended(self.of_kept(error))
            }
            FetchError::Collected(why) if self.begun_as_kept && !self.fetcher.is_job_done() => {
                Parting::TurnedAway(format!(
                    "{why}; the trainer has none, and the fetcher no --state"
                ))
            }
            FetchError::Misplaced(why) | FetchError::Collected(why) => Parting::TurnedAway(why),
            error => Parting::Ended(error.into()),
        }
    }

    /// An error about the position that is kept, with where it is.
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

    fn last_sent(&self) -> Option<Cursor> {
        self.sent.last_key_value().map(|(&epoch, &g)| Cursor { epoch, g })
    }

    /// Deals with what the trainer said.
    fn hear(&mut self, said: Said) -> Result<(), Parting> {
        let (epoch, g) = match said {
            Said::Ack(epoch, g) => (epoch, g),
            Said::Hello(_) => {
                return Err(Parting::TurnedAway(
                    "a second hello: a trainer says it once".to_owned(),
                ));
            }
            Said::Nonsense(what) => return Err(nonsense(&what)),
        };
        let acknowledged = Cursor { epoch, g };
        if acknowledged < self.cursor {
            return Ok(());
        }
        if self.sent.get(&epoch).is_none_or(|&last| g > last) {
            let last = self.last_sent();
            let sent =
                last.map_or("none was sent".to_owned(), |last| format!("{last} was sent last"));
            return Err(Parting::TurnedAway(format!(
                "the trainer acknowledges {acknowledged}, and {sent}: nothing of it is kept"
            )));
        }
        // It was sent, so that there is a number after it.
        self.save(Cursor { epoch, g: g.saturating_add(1) })?;
        self.fetcher.checkpointed(epoch, g);
        self.sent = self.sent.split_off(&epoch);
        Ok(())
    }

    fn save(&mut self, cursor: Cursor) -> io::Result<()> {
        let saved = Saved { identity: self.identity.clone(), cursor };
        self.cursors.save(&saved)?;
        self.cursor = cursor;
        Ok(())
    }

    /// All is delivered and acknowledged: closes the job. Until then a crash of the trainer must be able to
    /// begin again.
    async fn close(&mut self) -> Result<(), ServeError> {
        self.activity.send_replace(Activity::Closing);
        self.save(Cursor { epoch: self.epochs, g: 0 })?;
        self.fetcher.checkpointed_epochs(self.epochs);
        Ok(self.fetcher.settle().await?)
    }

    /// Writes every frame to `out`, a hello first; what is written counts as delivered for good.
    pub async fn write_all(
        mut self,
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
        let end = Cursor { epoch: self.epochs, g: 0 };
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
            match self.fetcher.next().await? {
                Delivery::Batch(batch) => {
                    let at = Cursor { epoch: batch.epoch, g: batch.g };
                    send(out, FrameKind::Batch, at, &batch.frame).await?;
                    self.save(Cursor { g: at.g + 1, ..at })?;
                    self.fetcher.checkpointed(at.epoch, at.g);
                }
                Delivery::EpochEnd(_) => {}
                Delivery::End => return Ok(()),
            }
        }
    }
}

/// A connection: frames one way, and what the trainer says the other.
struct Link<S> {
    writer: WriteHalf<S>,
    said: mpsc::Receiver<Said>,
    reading: AbortHandle,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Link<S> {
    fn new(mut reader: ReadHalf<S>, writer: WriteHalf<S>) -> Self {
        let (sender, said) = mpsc::channel(UNHEARD);
        let reading = tokio::spawn(async move {
            while let Some(said) = read_said(&mut reader).await {
                let last = matches!(said, Said::Nonsense(_));
                if sender.send(said).await.is_err() || last {
                    return;
                }
            }
        });
        Self { writer, said, reading: reading.abort_handle() }
    }

    async fn send(&mut self, kind: FrameKind, at: Cursor, payload: &[u8]) -> io::Result<()> {
        send(&mut self.writer, kind, at, payload).await
    }
}

impl<S> Drop for Link<S> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn send(
    out: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    at: Cursor,
    payload: &[u8],
) -> io::Result<()> {
    out.write_all(&header(kind, at.epoch, at.g, payload.len())).await?;
    out.write_all(payload).await?;
    out.flush().await
}

/// An error as a frame.
pub fn error_frame(why: &str) -> Vec<u8> {
    [&header(FrameKind::Error, 0, 0, why.len())[..], why.as_bytes()].concat()
}

fn gone(_: io::Error) -> Parting {
    Parting::Gone
}

fn nonsense(what: &str) -> Parting {
    Parting::TurnedAway(format!("the trainer sent {what}: the README has the protocol"))
}

/// What a server says first.
fn hello(fetcher: &Fetcher, identity: &Identity) -> String {
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

fn summary(fetcher: &Fetcher) -> String {
    let epochs = fetcher.view().map_or(0, |view| view.spec.epochs);
    let batches = fetcher.snapshot().metrics.batches;
    serde_json::json!({ "epochs": epochs, "batches": batches }).to_string()
}

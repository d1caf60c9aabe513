//! One trainer's visit: hello, batches, acknowledgements.

use super::{
    HELLO_PATIENCE, LAST_MESSAGES_PATIENCE, ServeError, Server,
    link::{Link, hello, summary},
    look_due,
};
use crate::{
    Delivery, FetchError,
    cursor::CursorStore,
    framing::{ClientHello, ClientMessage, FrameKind},
    server::Activity,
};
use gristmill_model::Visitation;
use gristmill_model::splits::Cursor;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// How one trainer's visit ended.
pub(super) enum Visit {
    /// All batches are delivered and acknowledged.
    Finished,
    /// The trainer left or was refused; another one may connect.
    Left,
}

/// Counts of a trainer's waits and batches: one that announces each wait computes between them.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::server) struct Turns {
    /// Waits that the trainer announced, and batches sent to it.
    announced: u64,
    sent: u64,
}

impl Turns {
    /// The trainer waits from now on.
    pub fn announce(&mut self) {
        self.announced += 1;
    }

    /// A batch is sent to it.
    pub fn send(&mut self) {
        self.sent += 1;
    }

    /// Whether the trainer computes. One that announces nothing is taken to wait.
    pub fn trainer_computes(self) -> bool {
        self.announced > 0 && self.announced <= self.sent
    }
}

/// Why a visit ends early.
enum VisitEnd {
    /// The trainer is gone.
    Gone,
    /// The trainer is refused, with the reason.
    Refused(String),
    /// Serving has ended for every trainer.
    Ended(ServeError),
}

impl From<io::Error> for VisitEnd {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

impl<C: CursorStore> Server<C> {
    pub(super) async fn visit<S>(&mut self, stream: S) -> Result<Visit, ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        self.sent.clear();
        self.turns = Turns::default();
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
            VisitEnd::Gone => self.process_remaining(&mut link).await?,
            VisitEnd::Refused(why) => {
                tracing::warn!("refused a trainer: {why}");
                self.tell(&mut link, &why).await;
            }
            VisitEnd::Ended(error) => {
                self.tell(&mut link, &error.to_string()).await;
                return Err(error);
            }
        }
        // The next trainer may have no checkpoint, so open the stream at the stored position.
        if self.opened.is_none_or(|opened| opened != self.cursor) {
            self.open_at(self.cursor).await;
        }
        Ok(Visit::Left)
    }

    /// Processes messages that a trainer sent before it left: writing a batch fails before they are read.
    async fn process_remaining<S>(&mut self, link: &mut Link<S>) -> Result<(), ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let until = self.clock.monotonic() + LAST_MESSAGES_PATIENCE;
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            let message = tokio::select! {
                biased;
                message = link.messages.recv() => message,
                () = self.clock.sleep(left) => None,
            };
            match message.map(|message| self.process(message)) {
                Some(Ok(())) => {}
                Some(Err(VisitEnd::Ended(error))) => return Err(error),
                // The trainer is gone, so there is nobody to refuse.
                Some(Err(VisitEnd::Refused(_) | VisitEnd::Gone)) | None => return Ok(()),
            }
        }
    }

    /// Sends a trainer the reason why it gets no more batches; it may have left, or stopped reading.
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

    /// Reads where the trainer begins, opens the stream there, and returns that position.
    async fn greet<S>(&mut self, link: &mut Link<S>) -> Result<Cursor, VisitEnd>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let hello = hello(&self.fetcher, &self.identity);
        link.send(FrameKind::Hello, self.cursor, hello.as_bytes()).await.map_err(gone)?;
        let message = tokio::select! {
            biased;
            message = link.messages.recv() => message.ok_or(VisitEnd::Gone)?,
            () = self.clock.sleep(HELLO_PATIENCE) => return Err(VisitEnd::Refused(format!(
                "no hello within {} s: a trainer answers the fetcher's hello with its own, and gets batches then",
                HELLO_PATIENCE.as_secs()
            ))),
        };
        let hello = match message {
            ClientMessage::Hello(hello) => hello,
            ClientMessage::RankHello(hello) => return Err(of_rank(hello.rank)),
            ClientMessage::Ack(_) | ClientMessage::JobAck(_) | ClientMessage::Waits => {
                return Err(VisitEnd::Refused(
                    "a message before a hello: a trainer says first which job its checkpoint is of"
                        .to_owned(),
                ));
            }
            ClientMessage::Invalid(what) => return Err(invalid(&what)),
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

    /// The first batch of a trainer that sent `hello`.
    fn beginning(&self, hello: &ClientHello) -> Result<Cursor, VisitEnd> {
        if let Some(why) = hello.identity.mismatch(&self.identity, "the trainer's checkpoint") {
            return Err(VisitEnd::Refused(why));
        }
        match hello.at() {
            None if self.was_done => Err(VisitEnd::Refused(self.done())),
            at => Ok(at.unwrap_or(self.cursor)),
        }
    }

    /// Waits until the trainer's start is located.
    async fn located<S>(&mut self, link: &mut Link<S>) -> Result<(), VisitEnd> {
        loop {
            let message = tokio::select! {
                biased;
                located = self.fetcher.located() => return located.map_err(|error| self.part(error)),
                message = link.messages.recv() => message.ok_or(VisitEnd::Gone)?,
            };
            self.process(message)?;
        }
    }

    /// Waits until the coordinator has accepted the trainer.
    async fn admitted<S>(&mut self, link: &mut Link<S>) -> Result<(), VisitEnd> {
        loop {
            let message = tokio::select! {
                biased;
                admitted = self.fetcher.admitted() => return admitted.map_err(|error| self.part(error)),
                message = link.messages.recv() => message.ok_or(VisitEnd::Gone)?,
            };
            self.process(message)?;
        }
    }

    /// Delivers from `begins` to the end of the job, and waits for the last acknowledgement.
    async fn deliver<S>(&mut self, link: &mut Link<S>, begins: Cursor) -> Result<(), VisitEnd>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        // Moving forward, save the position before it is announced to the coordinator; going back, after.
        if begins > self.cursor {
            self.save(begins)?;
        }
        self.fetcher.announce();
        self.admitted(link).await?;
        if begins < self.cursor {
            self.save(begins)?;
        }
        self.fetcher.restart_wait();
        loop {
            self.fetcher.set_trainer_computes(self.turns.trainer_computes());
            let delivery = tokio::select! {
                biased;
                message = link.messages.recv() => {
                    self.process(message.ok_or(VisitEnd::Gone)?)?;
                    continue;
                }
                delivery = self.fetcher.next() => delivery.map_err(|error| self.part(error))?,
                () = look_due(self.observer.is_some()) => {
                    self.look();
                    continue;
                }
            };
            self.observe(&delivery).await.map_err(VisitEnd::Ended)?;
            match delivery {
                Delivery::Batch(batch) => {
                    let at = batch.cursor();
                    self.sent.insert(at.epoch, at.batch_index);
                    self.activity.send_replace(Activity::Sending);
                    link.send(FrameKind::Batch, at, &batch.frame).await.map_err(gone)?;
                    self.turns.send();
                    self.activity.send_replace(Activity::Fetching);
                }
                Delivery::EpochEnd(_) | Delivery::OfOthers { .. } => {}
                Delivery::End => break,
            }
        }
        let end = Cursor::start_of(self.epochs);
        link.send(FrameKind::End, end, summary(&self.fetcher).as_bytes()).await.map_err(gone)?;
        self.activity.send_replace(Activity::LastAck);
        // Without checkpoints there is no acknowledgement to wait for.
        let exactly = self.fetcher.visitation() == Visitation::ExactlyOnce;
        while exactly && self.last_sent().is_some_and(|last| self.cursor <= last) {
            let message = link.messages.recv().await;
            self.process(message.ok_or(VisitEnd::Gone)?)?;
        }
        Ok(())
    }

    /// Whether an error ends this visit or all of them: the stored position applies to every trainer.
    fn part(&self, error: FetchError) -> VisitEnd {
        match error {
            FetchError::Collected(_) if self.begun_as_kept && self.cursors.name().is_some() => {
                VisitEnd::Ended(self.of_kept(error))
            }
            FetchError::Collected(why) if self.begun_as_kept && !self.fetcher.is_job_done() => {
                VisitEnd::Refused(format!(
                    "{why}; the trainer has none, and the fetcher no --state"
                ))
            }
            FetchError::Misplaced(why) | FetchError::Collected(why) => VisitEnd::Refused(why),
            error => VisitEnd::Ended(error.into()),
        }
    }

    fn last_sent(&self) -> Option<Cursor> {
        self.sent.last_key_value().map(|(&epoch, &index)| Cursor::new(epoch, index))
    }

    /// Processes a message of the trainer.
    fn process(&mut self, message: ClientMessage) -> Result<(), VisitEnd> {
        let acknowledged = match message {
            ClientMessage::Ack(batch) => batch,
            ClientMessage::Waits => {
                self.turns.announce();
                return Ok(());
            }
            ClientMessage::Hello(_) => {
                return Err(VisitEnd::Refused("a second hello: a trainer says it once".to_owned()));
            }
            ClientMessage::RankHello(hello) => return Err(of_rank(hello.rank)),
            ClientMessage::JobAck(_) => {
                return Err(VisitEnd::Refused(
                    "GMAJ speaks for the ranks of a run, and this fetcher has no --ranks"
                        .to_owned(),
                ));
            }
            ClientMessage::Invalid(what) => return Err(invalid(&what)),
        };
        if acknowledged < self.cursor {
            return Ok(());
        }
        let Cursor { epoch, batch_index } = acknowledged;
        if self.sent.get(&epoch).is_none_or(|&last| batch_index > last) {
            let last = self.last_sent();
            let sent =
                last.map_or("none was sent".to_owned(), |last| format!("{last} was sent last"));
            return Err(VisitEnd::Refused(format!(
                "the trainer acknowledges {acknowledged}, and {sent}: nothing of it is kept"
            )));
        }
        self.save(acknowledged.next())?;
        self.fetcher.checkpointed(acknowledged);
        self.sent = self.sent.split_off(&epoch);
        Ok(())
    }
}

fn gone(_: io::Error) -> VisitEnd {
    VisitEnd::Gone
}

fn of_rank(rank: u32) -> VisitEnd {
    VisitEnd::Refused(format!(
        "rank {rank} says hello, and this fetcher serves one trainer of all batches: start it with --ranks"
    ))
}

fn invalid(what: &str) -> VisitEnd {
    VisitEnd::Refused(format!("the trainer sent {what}: docs/training.md has the protocol"))
}

#[cfg(test)]
mod tests;

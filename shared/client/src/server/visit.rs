//! One trainer's visit: hello, batches, acknowledgements.

use super::{
    HELLO_PATIENCE, LAST_WORDS, ServeError, Server,
    link::{Link, hello, summary},
    look_due,
};
use crate::{
    Delivery, FetchError,
    cursor::{Cursor, CursorStore},
    framing::{ClientHello, FrameKind, Said},
    report::Observer,
    server::Activity,
};
use gristmill_model::Visitation;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// How one trainer's visit ended.
pub(super) enum Visit {
    /// Everything is delivered and acknowledged.
    Finished,
    /// It went away, or was turned away; another one may come.
    Left,
}

/// Why a visit ends early.
enum Parting {
    /// The trainer is gone.
    Gone,
    /// The trainer is refused, with the reason.
    TurnedAway(String),
    /// Nobody gets anything any more.
    Ended(ServeError),
}

impl From<io::Error> for Parting {
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

    /// The first batch of a trainer that said `hello`.
    fn beginning(&self, hello: &ClientHello) -> Result<Cursor, Parting> {
        if let Some(why) = hello.identity.mismatch(&self.identity, "the trainer's checkpoint") {
            return Err(Parting::TurnedAway(why));
        }
        match hello.at() {
            None if self.was_done => Err(Parting::TurnedAway(self.done())),
            at => Ok(at.unwrap_or(self.cursor)),
        }
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
        self.observer.iter_mut().for_each(Observer::restarts);
        loop {
            self.observer.iter_mut().for_each(Observer::asks);
            let delivery = tokio::select! {
                biased;
                said = link.said.recv() => {
                    self.hear(said.ok_or(Parting::Gone)?)?;
                    continue;
                }
                delivery = self.fetcher.next() => delivery.map_err(|error| self.part(error))?,
                () = look_due(self.observer.is_some()) => {
                    self.look();
                    continue;
                }
            };
            self.observe(&delivery).await.map_err(Parting::Ended)?;
            match delivery {
                Delivery::Batch(batch) => {
                    let at = Cursor { epoch: batch.epoch, g: batch.g };
                    self.sent.insert(at.epoch, at.g);
                    self.activity.send_replace(Activity::Sending);
                    link.send(FrameKind::Batch, at, &batch.frame).await.map_err(gone)?;
                    self.activity.send_replace(Activity::Fetching);
                }
                Delivery::EpochEnd(_) => {}
                Delivery::End => break,
            }
        }
        let end = Cursor { epoch: self.epochs, g: 0 };
        link.send(FrameKind::End, end, summary(&self.fetcher).as_bytes()).await.map_err(gone)?;
        self.activity.send_replace(Activity::LastAck);
        // Without checkpoints there is no acknowledgement to wait for.
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
}

fn gone(_: io::Error) -> Parting {
    Parting::Gone
}

fn nonsense(what: &str) -> Parting {
    Parting::TurnedAway(format!("the trainer sent {what}: the README has the protocol"))
}

//! The loop of a server of ranks.

use super::{
    ConnectedClient, END_NOTICE, LOOK_EVERY, Phase, RankServer, ServeError, ServerActivity,
    links::{OutgoingFrame, RankLinkEvent, RankLinkEventKind, RankLinkRole},
    rank_states::{RankLinkId, RankOutput, StreamAction},
};
use crate::framing::{ClientHello, ClientMessage, SocketFrameKind};
use gristmill_model::{splits::Cursor, wire::EpochPlan};
use gristmill_stream::{FetchError, RankBatch, StepDelivery, StepStream};
use std::{future::pending, io, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

/// Something to deal with.
enum Happened<S> {
    Visitor(ConnectedClient<S>),
    Event(RankLinkEvent),
    /// The dataset is indexed.
    Indexed(Result<EpochPlan, FetchError>),
    /// The stream has come to the next point, or failed.
    Stream(Result<Stream, FetchError>),
    Overdue,
}

/// A point that the stream has come to.
enum Stream {
    Located,
    Joined,
    Delivered(StepDelivery),
    /// The job is closed.
    Closed,
    /// The job was closed by another fetcher.
    Over,
}

impl RankServer {
    pub(super) async fn run<S: AsyncRead + AsyncWrite + Send + 'static>(
        &mut self,
        visitors: &mut mpsc::Receiver<ConnectedClient<S>>,
        sender: &mpsc::Sender<RankLinkEvent>,
        events: &mut mpsc::Receiver<RankLinkEvent>,
    ) -> Result<(), ServeError> {
        loop {
            self.keep()?;
            if self.phase == Phase::Serving && self.states.are_done() {
                self.begin_closing()?;
            }
            let wanted = self.hand_over().await?;
            self.show();
            let (phase, may_be_gone) = (self.phase, self.may_be_gone());
            let left = self.until_overdue();
            let overdue = async {
                match left {
                    Some(left) => self.clock.sleep(left).await,
                    None => pending().await,
                }
            };
            // Before, nobody knows which batches a position counts.
            let is_planned = self.view.plan.is_some();
            let indexed = self.steps.fetcher().indexed();
            let happened = tokio::select! {
                biased;
                plan = indexed, if !is_planned => Happened::Indexed(plan),
                visitor = visitors.recv(), if is_planned => match visitor {
                    Some(visitor) => Happened::Visitor(visitor),
                    None => return Err(io::Error::other("nobody can connect any more").into()),
                },
                event = events.recv() => match event {
                    Some(event) => Happened::Event(event),
                    None => continue,
                },
                stream = advance(&mut self.steps, phase, may_be_gone, wanted) => Happened::Stream(stream),
                () = overdue => Happened::Overdue,
            };
            match happened {
                Happened::Indexed(Ok(plan)) => self.divide(plan),
                Happened::Indexed(Err(error)) => self.on_failure(error).await?,
                Happened::Visitor(visitor) => self.on_visitor(visitor, sender).await?,
                Happened::Event(event) => self.on_event(event).await?,
                Happened::Stream(Ok(Stream::Located)) => self.join()?,
                Happened::Stream(Ok(Stream::Joined)) => {
                    self.save(self.opened)?;
                    self.phase = Phase::Serving;
                }
                Happened::Stream(Ok(Stream::Delivered(delivery))) => {
                    self.observe(&delivery).await?;
                    self.on_delivery(delivery);
                }
                Happened::Stream(Ok(Stream::Closed)) => return Ok(()),
                Happened::Stream(Ok(Stream::Over)) => {
                    self.phase = Phase::Over(self.clock.monotonic() + END_NOTICE);
                }
                Happened::Stream(Err(error)) => self.on_failure(error).await?,
                Happened::Overdue => {
                    if let Some(ended) = self.on_overdue() {
                        return ended;
                    }
                }
            }
        }
    }

    async fn on_visitor(
        &mut self,
        visitor: ConnectedClient<impl AsyncRead + AsyncWrite + Send + 'static>,
        sender: &mpsc::Sender<RankLinkEvent>,
    ) -> Result<(), ServeError> {
        let only_reads = visitor.only_reads;
        let link = self.links.open(visitor, sender.clone());
        self.links.send(link, vec![self.hello()]);
        if only_reads {
            let hello = ClientHello::new(self.identity.clone());
            self.on_hello(link, hello).await?.map_err(ServeError::Over)?;
        }
        Ok(())
    }

    /// Time until something is overdue; none if nothing ever is.
    fn until_overdue(&self) -> Option<Duration> {
        let over = match self.phase {
            Phase::Over(until) => Some(until),
            _ => None,
        };
        let look = self.observer.is_some().then_some(self.look_at);
        let deadlines = [over, look, self.unknown_until, self.links.deadline()];
        let deadline = deadlines.into_iter().flatten().min()?;
        Some(deadline.saturating_sub(self.clock.monotonic()))
    }

    /// Sends ranks what is due, and brings the stream to where it is needed.
    async fn hand_over(&mut self) -> Result<StreamAction, ServeError> {
        if ![Phase::Serving, Phase::Closing].contains(&self.phase) {
            return Ok(StreamAction::Hold);
        }
        while let Some((link, handed)) = self.states.hand_over() {
            let frames = self.frames(handed, self.links.is_plain(link));
            self.links.send(link, frames);
        }
        if self.phase == Phase::Closing {
            return Ok(StreamAction::Hold);
        }
        let wanted = match self.states.wanted() {
            StreamAction::Reopen(at) => {
                tracing::info!(
                    "a rank returned to its checkpoint: the stream begins again at {at}"
                );
                self.steps.reopen(at).await?;
                self.steps.fetcher().announce();
                self.states.reopened(self.steps.fetcher().begin());
                self.states.wanted()
            }
            wanted => wanted,
        };
        self.steps.set_ranks_compute(self.states.compute());
        Ok(wanted)
    }

    /// The frames of what is handed to a rank, or to a trainer of all batches.
    fn frames(&self, handed: RankOutput, is_plain: bool) -> Vec<OutgoingFrame> {
        let RankOutput::Step { batch: RankBatch { batch, repeated_for }, next } = handed else {
            let end = Cursor::start_of(self.view.spec.epochs);
            return vec![OutgoingFrame::new(SocketFrameKind::End, end, self.summary(false))];
        };
        if is_plain {
            return vec![OutgoingFrame::new(SocketFrameKind::Batch, batch.cursor(), batch.frame)];
        }
        let checkpoint =
            OutgoingFrame::new(SocketFrameKind::Checkpoint, next, self.checkpoint(next));
        let at = batch.cursor();
        let batch = match repeated_for {
            None => OutgoingFrame::new(SocketFrameKind::Batch, at, batch.frame),
            Some(slot) => {
                let at = Cursor { batch_index: slot, ..at };
                OutgoingFrame::new(SocketFrameKind::Repeat, at, batch.frame)
            }
        };
        vec![checkpoint, batch]
    }

    pub(super) async fn on_event(
        &mut self,
        RankLinkEvent { link, what }: RankLinkEvent,
    ) -> Result<(), ServeError> {
        let role = self.links.role(link).cloned();
        let rank_index = match role {
            Some(RankLinkRole::Attached { rank_index, .. }) => Some(rank_index),
            _ => None,
        };
        match (what, role) {
            (_, None) | (RankLinkEventKind::Message(_), Some(RankLinkRole::Leaving)) => {}
            (RankLinkEventKind::Unwritable(error), Some(_)) => {
                if self.links.only_reads(link) {
                    return Err(error.into());
                }
            }
            (RankLinkEventKind::Gone, Some(_)) => {
                self.links.remove(link);
                if let Some(rank_index) = rank_index {
                    self.pass_rank_on(rank_index, link).await?;
                }
            }
            (RankLinkEventKind::Written, Some(_)) => {
                if let Some(rank_index) =
                    rank_index.filter(|rank_index| self.states.link(*rank_index) == Some(link))
                {
                    self.states.taken(rank_index);
                }
            }
            (RankLinkEventKind::Message(message), Some(role)) => {
                if let Err(why) = self.on_message(link, role, message).await? {
                    self.links.refuse(link, &why);
                    if let Some(rank_index) = rank_index {
                        self.pass_rank_on(rank_index, link).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Processes a message; the inner error is why its client is refused.
    async fn on_message(
        &mut self,
        link: RankLinkId,
        role: RankLinkRole,
        message: ClientMessage,
    ) -> Result<Result<(), String>, ServeError> {
        Ok(match (message, role) {
            (ClientMessage::Hello(hello), RankLinkRole::New) => {
                return self.on_hello(link, hello).await;
            }
            (ClientMessage::Hello(_), _) => Err("a second hello: a client says it once".to_owned()),
            (ClientMessage::Ack(batch), RankLinkRole::Attached { rank_index, .. }) => {
                self.states.acknowledge(rank_index, batch)
            }
            (ClientMessage::JobAck(at), RankLinkRole::Attached { rank_index, .. }) => {
                self.states.acknowledge_job(rank_index, at)
            }
            (ClientMessage::Waits, RankLinkRole::Attached { rank_index, .. }) => {
                self.states.waits(rank_index);
                Ok(())
            }
            (
                message @ (ClientMessage::Ack(_) | ClientMessage::JobAck(_) | ClientMessage::Waits),
                RankLinkRole::Waiting(..),
            ) => {
                if self.links.defer(link, message) {
                    Ok(())
                } else {
                    Err("too many messages before the rank's earlier client is gone".to_owned())
                }
            }
            (ClientMessage::Ack(_) | ClientMessage::JobAck(_) | ClientMessage::Waits, _) => {
                Err("a message before a hello: a client says first which job its checkpoint is of"
                    .to_owned())
            }
            (ClientMessage::Invalid(what), _) => {
                Err(format!("the client sent {what}: docs/training.md has the protocol"))
            }
        })
    }

    /// Counts a delivery for the report.
    async fn observe(&mut self, delivery: &StepDelivery) -> Result<(), ServeError> {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        let observed = observer.delivered(delivery, self.steps.fetcher()).await;
        observed.map_err(|failure| io::Error::other(failure.to_string()).into())
    }

    /// Observes the run while it delivers nothing.
    fn look(&mut self) {
        let now = self.clock.monotonic();
        if let Some(observer) = self.observer.as_mut().filter(|_| self.look_at <= now) {
            observer.look(self.steps.fetcher());
            self.look_at = now + LOOK_EVERY;
        }
    }

    fn on_delivery(&mut self, delivery: StepDelivery) {
        match delivery {
            StepDelivery::Step { step, batches, next } => {
                let start =
                    Cursor { epoch: step.epoch, batch_index: self.steps.ranks().first_of(step) };
                // Before its last step, if that lacks batches.
                self.states.know_end(self.fetcher().end_of(step.epoch));
                // A step of which no rank of this fetcher has a batch is passed all the same.
                let is_first = self.states.release(start, next, batches.clone());
                if is_first {
                    self.counter.ranks.step(&batches);
                }
            }
            StepDelivery::EpochEnd { totals, left_out, .. } => {
                self.states.know_end(self.fetcher().end_of(totals.epoch));
                self.states.end_epoch(totals.epoch);
                self.counter.end_epoch(&totals, left_out);
            }
            StepDelivery::End => self.states.end_all(),
        }
    }

    /// Gives up clients that are too slow. A result ends serving.
    fn on_overdue(&mut self) -> Option<Result<(), ServeError>> {
        self.look();
        for link in self.links.overdue() {
            match self.links.role(link) {
                Some(RankLinkRole::New) => self.links.refuse(
                    link,
                    "no hello within 5 s: a client answers the fetcher's hello with its own, and gets batches then",
                ),
                Some(RankLinkRole::Waiting(rank_index, _)) => {
                    let rank = self.own().range.first as usize + rank_index;
                    let why = match self.own().run.ranks.count.get() {
                        1 => "another trainer is connected to this fetcher: end it first, because a fetcher serves \
                              one trainer at a time"
                            .to_owned(),
                        _ => format!("another client is connected as rank {rank}: end it first"),
                    };
                    self.links.refuse(link, &why);
                }
                _ => self.links.remove(link),
            }
        }
        if self.unknown_until.take_if(|until| *until <= self.clock.monotonic()).is_some() {
            self.states.stop_waiting_for_unknown();
        }
        match self.phase {
            Phase::Over(until) if until <= self.clock.monotonic() => {
                let is_at_end = self.beginning.known() >= Cursor::start_of(self.view.spec.epochs);
                Some(if is_at_end || self.has_reported_end {
                    Ok(())
                } else {
                    Err(ServeError::Over(self.done()))
                })
            }
            _ => None,
        }
    }

    /// All ranks have all. The job closes when those of other fetchers have it too; until then a rank may wait
    /// for the end, or return to it.
    fn begin_closing(&mut self) -> Result<(), ServeError> {
        let epochs = self.view.spec.epochs;
        self.save(Cursor::start_of(epochs))?;
        self.fetcher().checkpointed_epochs(epochs);
        self.phase = Phase::Closing;
        Ok(())
    }

    fn show(&self) {
        let (absent, slow) = (self.states.absent(), self.states.slowest());
        let activity = match self.phase {
            Phase::Over(_) => ServerActivity::Over,
            Phase::Closing => ServerActivity::Closing,
            _ if self.view.plan.is_none() => ServerActivity::Fetching,
            Phase::Greeting | Phase::Misplaced => ServerActivity::Absent(absent),
            Phase::Locating | Phase::Joining => ServerActivity::Fetching,
            Phase::Serving if !absent.is_empty() => ServerActivity::Absent(absent),
            Phase::Serving if self.states.is_at_end => {
                ServerActivity::LastAck(self.states.unacknowledged())
            }
            Phase::Serving if slow.is_empty() && !self.states.compute() => ServerActivity::Fetching,
            Phase::Serving if slow.is_empty() || slow.len() == self.states.len() => {
                ServerActivity::Training
            }
            Phase::Serving => ServerActivity::Slow(slow),
        };
        self.activity.send_if_modified(|before| {
            let is_new = *before != activity;
            *before = activity;
            is_new
        });
    }
}

/// Brings the stream to its next point.
async fn advance(
    steps: &mut StepStream,
    phase: Phase,
    may_be_gone: bool,
    wanted: StreamAction,
) -> Result<Stream, FetchError> {
    match phase {
        Phase::Over(_) | Phase::Misplaced => pending().await,
        Phase::Greeting => {
            steps.fetcher().located().await?;
            // The ranks of an earlier fetcher may be gone; those of a new run may have an earlier checkpoint.
            if may_be_gone && steps.fetcher().is_at_end() {
                return Ok(Stream::Located);
            }
            tokio::select! {
                biased;
                error = steps.fetcher().failed() => Err(error),
                () = steps.fetcher().job_done() => Ok(Stream::Over),
            }
        }
        Phase::Locating => steps.fetcher().located().await.map(|()| Stream::Located),
        Phase::Joining => steps.fetcher().admitted().await.map(|()| Stream::Joined),
        Phase::Closing => steps.fetcher().settle().await.map(|()| Stream::Closed),
        Phase::Serving if wanted == StreamAction::Release => {
            steps.next().await.map(Stream::Delivered)
        }
        Phase::Serving => Err(steps.fetcher().failed().await),
    }
}

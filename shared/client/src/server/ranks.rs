//! Serves the ranks of one host, each over a connection of its own, in the framing of [`crate::framing`].
//!
//! One loop takes what happens in a fixed order; tasks per connection read and write, so that a slow rank delays
//! nobody's frames. At most two steps are kept for ranks that have yet to take them: a rank that takes nothing
//! holds the others then, as it would in their collective operations.

mod beginning;
mod counts;
mod hellos;
mod links;
mod passed;
mod seats;
mod serving;

pub use beginning::Beginning;
pub use counts::{Counts, EpochCounts, RankCounts};

use super::{END_NOTICE, MAX_WAITING_MESSAGES, ServeError, Visitor};
use crate::{
    FetchError, Fetcher, OwnRanks, Steps,
    cursor::{CursorStore, Identity, Saved},
    framing::FrameKind,
};
use counts::Counter;
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{JobState, JobView};
use gristmill_model::{Checkpoint, Visitation};
use gristmill_ports::Clock;
use links::{Frame, Links};
use seats::Seats;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, watch},
};

/// The activity of a server of ranks, for display.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RankActivity {
    /// The stream is being opened, or a step is being fetched.
    #[default]
    Fetching,
    /// These ranks have yet to connect.
    Absent(Vec<u32>),
    /// These ranks have yet to take a step, and the others wait for them.
    Slow(Vec<u32>),
    /// The ranks are at work.
    Training,
    /// These ranks have yet to acknowledge their last step.
    LastAck(Vec<u32>),
    /// The job is being closed.
    Closing,
    /// All is over, and ranks that connect are refused.
    Over,
}

/// How far serving has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No rank has said hello: where the run begins is not decided.
    Greeting,
    /// As before, and the stream cannot begin where it was opened.
    Misplaced,
    /// The beginning is being located in the stream.
    Locating,
    /// The coordinator is asked to accept the ranks.
    Joining,
    Serving,
    /// All ranks have all, and the job is to be closed.
    Closing,
    /// The job was done before; ranks that connect until this time are refused.
    Over(Duration),
}

/// Serves the ranks of one host.
pub struct RankServer<C> {
    steps: Steps,
    own: OwnRanks,
    view: JobView,
    identity: Identity,
    clock: Arc<dyn Clock>,
    cursors: C,
    beginning: Beginning,
    /// The position at which the stream was opened.
    opened: Cursor,
    phase: Phase,
    seats: Seats,
    links: Links,
    /// The position that `cursors` has.
    saved: Cursor,
    counter: Counter,
    /// The position that the first rank named.
    named: Option<Cursor>,
    /// Whether a rank had all of a job that was done before.
    has_reported_end: bool,
    /// When ranks that have never connected stop keeping the others waiting, once one has come back to a restarted
    /// fetcher.
    unknown_until: Option<Duration>,
    activity: watch::Sender<RankActivity>,
}

impl<C: CursorStore> RankServer<C> {
    /// `fetcher` serves ranks, is open at the known beginning, and is not announced.
    ///
    /// # Errors
    /// The job cannot be served to ranks.
    pub fn new(fetcher: Fetcher, cursors: C, beginning: Beginning) -> Result<Self, FetchError> {
        let refused = |why: &str| FetchError::Refused(why.to_owned());
        let view = fetcher.view().ok_or_else(|| refused("the job is not known"))?;
        let own = fetcher.own().ok_or_else(|| refused("the fetcher serves no ranks"))?;
        if fetcher.visitation() != Visitation::ExactlyOnce {
            return Err(FetchError::Refused(format!(
                "job {} delivers {}, and ranks that return to a checkpoint need exactly-once: start a job with \
                 --visitation exactly-once, or serve it without --ranks",
                view.job,
                fetcher.visitation()
            )));
        }
        let clock = fetcher.clock();
        let opened = beginning.known();
        let is_done = view.state == JobState::Done;
        let over = clock.monotonic() + END_NOTICE;
        let is_successor = beginning.is_successor();
        Ok(Self {
            seats: Seats::new(own.run.ranks, own.range, (view.spec.epochs, opened), is_successor),
            links: Links::new(Arc::clone(&clock)),
            phase: if is_done { Phase::Over(over) } else { Phase::Greeting },
            counter: Counter::new(own.range.first..own.range.end()),
            identity: Identity::of(&view),
            steps: Steps::new(fetcher),
            activity: watch::Sender::default(),
            saved: Cursor::default(),
            named: None,
            has_reported_end: false,
            unknown_until: None,
            own,
            view,
            clock,
            cursors,
            beginning,
            opened,
        })
    }

    /// The stream that is served.
    pub fn fetcher(&self) -> &Fetcher {
        self.steps.fetcher()
    }

    /// A receiver of the server's activity.
    pub fn activity(&self) -> watch::Receiver<RankActivity> {
        self.activity.subscribe()
    }

    /// The steps that the ranks were given.
    pub fn counts(&self) -> Counts {
        self.counter.counts()
    }

    /// Serves ranks until the job is delivered and acknowledged by all of them.
    ///
    /// # Errors
    /// Why serving ended before.
    pub async fn serve<S>(
        &mut self,
        mut visitors: mpsc::Receiver<Visitor<S>>,
    ) -> Result<(), ServeError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (sender, mut events) = mpsc::channel(MAX_WAITING_MESSAGES);
        let served = self.run(&mut visitors, &sender, &mut events).await;
        let end = Cursor::start_of(self.view.spec.epochs);
        match &served {
            Ok(()) => {
                let summary = self.summary(true);
                self.links.end_all(|| Frame::new(FrameKind::End, end, summary.clone()));
            }
            Err(error) => {
                let why = error.to_string();
                self.links.end_all(|| Frame::new(FrameKind::Error, end, why.clone()));
            }
        }
        self.links.drain(&mut events).await;
        served
    }

    /// The payload of the server's hello.
    fn hello(&self) -> Frame {
        let OwnRanks { run, range, .. } = self.own;
        let from = self.opened;
        let hello = serde_json::json!({
            "job": self.identity.job,
            "dataset": self.identity.dataset,
            "fingerprint": self.identity.fingerprint,
            "seed": self.view.spec.seed,
            "epochs": self.view.spec.epochs,
            "batches": self.fetcher().batches_per_epoch(),
            "visitation": self.fetcher().visitation().to_string(),
            "ranks": {
                "first": range.first,
                "count": range.count,
                "of": run.ranks.count,
                "tail": run.ranks.tail,
                "run": run.token,
            },
            "from": from,
        });
        Frame::new(FrameKind::Hello, from, hello.to_string())
    }

    /// The payload of the last frame.
    fn summary(&self, is_closed: bool) -> String {
        let Counts { epochs, .. } = self.counts();
        let batches: u64 = epochs.iter().map(|epoch| epoch.batches).sum();
        serde_json::json!({
            "epochs": self.view.spec.epochs,
            "batches": batches,
            "closed": is_closed,
            "totals": epochs,
        })
        .to_string()
    }

    /// The text of the checkpoint at `next`.
    fn checkpoint(&self, next: Cursor) -> String {
        Checkpoint::of(&self.view, next).to_string()
    }

    fn done(&self) -> String {
        super::done(&self.identity)
    }

    /// Stores what is durable for all ranks, then reports it.
    fn keep(&mut self) -> Result<(), ServeError> {
        let durable = self.seats.durable();
        if self.phase == Phase::Serving && durable != self.saved {
            self.save(durable)?;
            self.steps.checkpointed(durable);
        }
        Ok(())
    }

    fn save(&mut self, cursor: Cursor) -> Result<(), ServeError> {
        self.cursors.save(&Saved { identity: self.identity.clone(), cursor })?;
        self.saved = cursor;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

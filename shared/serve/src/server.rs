//! Serves the batches of a job to the ranks of one fetcher, each over a connection of its own, in the framing of
//! [`crate::framing`]. A trainer that takes every batch is one rank.
//!
//! One loop takes what happens in a fixed order; tasks per connection read and write, so that a slow rank delays
//! nobody's frames. Few steps are kept for ranks that have yet to take them: a rank that takes nothing
//! holds the others then, as it would in their collective operations.

mod hellos;
mod links;
mod rank_states;
mod serving;
mod start_candidates;

use crate::{
    cursor::{CursorStore, SavedCursor, StreamIdentity},
    framing::SocketFrameKind,
};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{JobState, JobView};
use gristmill_model::{Checkpoint, Epoch, Visitation};
use gristmill_ports::Clock;
use gristmill_stream::{
    EpochCounts, EpochTotals, FetchError, Fetcher, RankSteps, RunObservations, RunObserver,
    ServedRanks, StepStream,
};
pub use links::{ConnectedClient, error_frame};
use links::{OutgoingFrame, RankLinks};
use rank_states::{AckTiming, RankStates};
pub use start_candidates::StartCandidates;
use std::{collections::BTreeMap, io, ops::Range, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, watch},
};

/// How long a connected client may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an ended run waits for a client, to notify it.
const END_NOTICE: Duration = Duration::from_secs(10);
/// Interval between observations of a run while it delivers nothing.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most messages of clients that wait to be processed.
const MAX_WAITING_MESSAGES: usize = 64;

/// Why serving ended before the job did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The position in the state file does not belong to this job.
    #[error("{0}")]
    State(String),
    /// The job was already over.
    #[error("{0}")]
    Over(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The position stored in `cursors`, which must be of the job `identity`; none if there is none.
pub fn kept(
    cursors: &mut dyn CursorStore,
    identity: &StreamIdentity,
) -> Result<Option<Cursor>, ServeError> {
    let Some(saved) = cursors.load()? else { return Ok(None) };
    let name = cursors.name().unwrap_or_default();
    match saved.identity.mismatch(identity, &name) {
        None => Ok(Some(saved.cursor)),
        Some(why) => Err(ServeError::State(why)),
    }
}

/// The activity of a server, for display.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ServerActivity {
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
    /// The job is done; ranks that connect until this time are refused.
    Over(Duration),
}

/// Serves the ranks of one fetcher.
pub struct RankServer {
    steps: StepStream,
    view: JobView,
    identity: StreamIdentity,
    clock: Arc<dyn Clock>,
    cursors: Box<dyn CursorStore>,
    beginning: StartCandidates,
    /// The position at which the stream was opened.
    opened: Cursor,
    phase: Phase,
    acknowledged: AckTiming,
    states: RankStates,
    links: RankLinks,
    /// The position that `cursors` has.
    saved: Cursor,
    counter: ServedCounts,
    /// The position that the first rank named.
    named: Option<Cursor>,
    /// Whether a rank had all of a job that was done before.
    has_reported_end: bool,
    /// When ranks that have never connected stop keeping the others waiting, once one has come back to a restarted
    /// fetcher.
    unknown_until: Option<Duration>,
    /// When the run is observed next.
    look_at: Duration,
    activity: watch::Sender<ServerActivity>,
    /// Counts the deliveries, for a report.
    observer: Option<RunObserver>,
}

impl RankServer {
    /// `fetcher` is open at the known beginning, and is not announced.
    pub fn new(
        fetcher: Fetcher,
        cursors: Box<dyn CursorStore>,
        beginning: StartCandidates,
    ) -> Result<Self, FetchError> {
        let refused = |why: &str| FetchError::Refused(why.to_owned());
        let view = fetcher.view().ok_or_else(|| refused("the job is not known"))?;
        let (own, visitation) = (fetcher.own(), fetcher.visitation());
        if visitation != Visitation::ExactlyOnce && own.run.ranks.count.get() > 1 {
            return Err(FetchError::Refused(format!(
                "job {} delivers {visitation}, and ranks that return to a checkpoint need exactly-once: start a job \
                 with --visitation exactly-once, or serve it without --ranks",
                view.job,
            )));
        }
        let clock = fetcher.clock();
        let steps = StepStream::new(fetcher);
        let opened = steps.fetcher().begin();
        let is_done = view.state == JobState::Done;
        let over = clock.monotonic() + END_NOTICE;
        let acknowledged = AckTiming::from_visitation(visitation);
        let mut states = RankStates::new(own, view.spec.epochs, opened, acknowledged);
        states.know_end(beginning.ended);
        Ok(Self {
            states,
            links: RankLinks::new(Arc::clone(&clock)),
            phase: if is_done { Phase::Over(over) } else { Phase::Greeting },
            counter: ServedCounts::new(own.range.first..own.range.end()),
            identity: StreamIdentity::from_view(&view),
            activity: watch::Sender::default(),
            saved: beginning.kept.unwrap_or_default(),
            named: None,
            has_reported_end: false,
            unknown_until: None,
            look_at: Duration::ZERO,
            observer: None,
            steps,
            view,
            clock,
            cursors,
            beginning,
            opened,
            acknowledged,
        })
    }

    /// Sets the observer that counts the deliveries.
    pub fn observed_by(&mut self, observer: RunObserver) {
        self.observer = Some(observer);
    }

    /// The deliveries, if they were observed.
    pub fn into_observed(self) -> Option<RunObservations> {
        let fetcher = self.steps.fetcher();
        Some(self.observer?.finish(&fetcher.statistics(), fetcher.view()))
    }

    /// The stream that is served.
    pub fn fetcher(&self) -> &Fetcher {
        self.steps.fetcher()
    }

    fn own(&self) -> ServedRanks {
        self.fetcher().own()
    }

    /// Whether the ranks of an earlier fetcher may have had everything.
    fn may_be_gone(&self) -> bool {
        self.beginning.is_successor() || !self.fetcher().has_named_run()
    }

    /// A receiver of the server's activity.
    pub fn activity(&self) -> watch::Receiver<ServerActivity> {
        self.activity.subscribe()
    }

    /// The steps that the ranks were given.
    pub fn counts(&self) -> ServedCounts {
        self.counter.clone()
    }

    /// Writes every frame to `out`, starting with a hello. Written batches count as acknowledged.
    pub async fn write_all(
        &mut self,
        out: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> Result<(), ServeError> {
        self.acknowledged = AckTiming::Taken;
        self.states = self.states_at(self.opened);
        let (sender, visitors) = mpsc::channel(1);
        // Nobody else connects, and a channel that is closed would end serving.
        let _ = sender.send(ConnectedClient::reading_only(out)).await;
        self.serve(visitors).await
    }

    /// Serves ranks until the job is delivered and acknowledged by all of them.
    pub async fn serve(
        &mut self,
        mut visitors: mpsc::Receiver<ConnectedClient<impl AsyncRead + AsyncWrite + Send + 'static>>,
    ) -> Result<(), ServeError> {
        let (sender, mut events) = mpsc::channel(MAX_WAITING_MESSAGES);
        let served = self.run(&mut visitors, &sender, &mut events).await;
        let end = Cursor::start_of(self.view.spec.epochs);
        match &served {
            Ok(()) => {
                let summary = self.summary(true);
                // A trainer of all batches has had its last frame.
                let gets = |links: &RankLinks, link| !links.is_plain(link);
                self.links.end_all(gets, || {
                    OutgoingFrame::new(SocketFrameKind::End, end, summary.clone())
                });
            }
            Err(error) => {
                let why = error.to_string();
                if self.links.is_empty() && !matches!(error, ServeError::State(_)) {
                    self.await_one(&mut visitors, sender, &why).await;
                }
                self.links.end_all(
                    |_, _| true,
                    || OutgoingFrame::new(SocketFrameKind::Error, end, why.clone()),
                );
            }
        }
        self.links.drain(&mut events).await;
        served
    }

    /// Waits for a client, to tell it why serving has ended.
    async fn await_one(
        &mut self,
        visitors: &mut mpsc::Receiver<
            ConnectedClient<impl AsyncRead + AsyncWrite + Send + 'static>,
        >,
        events: mpsc::Sender<links::RankLinkEvent>,
        why: &str,
    ) {
        let seconds = END_NOTICE.as_secs();
        tracing::warn!("{why} (waiting {seconds} s for a trainer, to report this to it)");
        self.activity.send_replace(ServerActivity::Over);
        tokio::select! {
            biased;
            visitor = visitors.recv() => if let Some(visitor) = visitor {
                self.links.open(visitor, events);
            },
            () = self.clock.sleep(END_NOTICE) => {}
        }
    }

    fn hello(&self) -> OutgoingFrame {
        let ServedRanks { run, range, .. } = self.own();
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
                "replicas": run.ranks.replicas,
                "tail": run.ranks.tail,
                "run": run.token,
            },
            "from": self.opened,
        });
        OutgoingFrame::new(SocketFrameKind::Hello, self.states.durable(), hello.to_string())
    }

    /// The payload of the last frame.
    fn summary(&self, is_closed: bool) -> String {
        let epochs: Vec<_> = self.counter.epochs.values().collect();
        let batches: u64 = epochs.iter().map(|epoch| epoch.totals.batches).sum();
        serde_json::json!({
            "epochs": self.view.spec.epochs,
            "batches": batches,
            "closed": is_closed,
            "totals": epochs,
        })
        .to_string()
    }

    fn checkpoint(&self, next: Cursor) -> String {
        Checkpoint::new(&self.view, next).to_string()
    }

    /// The answer to ranks of a job that is over.
    fn done(&self) -> String {
        format!(
            "job {} is done: all its batches were delivered and acknowledged; read on with a larger --epochs, or train again under another job name",
            self.identity.job
        )
    }

    /// Stores what is durable for all ranks, then reports it.
    fn keep(&mut self) -> Result<(), ServeError> {
        let durable = self.states.durable();
        if self.phase == Phase::Serving && durable != self.saved {
            self.save(durable)?;
            self.steps.checkpointed(durable);
        }
        Ok(())
    }

    fn save(&mut self, cursor: Cursor) -> Result<(), ServeError> {
        let (identity, split_batches) = (self.identity.clone(), self.view.split_batches());
        let split_batches = split_batches.unwrap_or(0);
        self.cursors.save(&SavedCursor { identity, split_batches, cursor })?;
        self.saved = cursor;
        Ok(())
    }
}

/// The steps of all ranks of a fetcher, and the epochs of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCounts {
    pub ranks: RankSteps,
    pub epochs: BTreeMap<Epoch, EpochCounts>,
}

impl ServedCounts {
    fn new(range: Range<u32>) -> Self {
        let mut ranks = RankSteps::default();
        ranks.begin_run(range);
        Self { ranks, epochs: BTreeMap::new() }
    }

    /// An epoch ended, maybe not for the first time.
    fn end_epoch(&mut self, totals: &EpochTotals, left_out: u64) {
        let mut totals = *totals;
        if let Some(before) = self.epochs.get(&totals.epoch) {
            // A rank went back to an earlier step, and waited again.
            totals.waits += before.totals.waits;
        }
        self.epochs.insert(totals.epoch, EpochCounts { totals, left_out });
    }
}

#[cfg(test)]
mod one_trainer_tests;

#[cfg(test)]
mod tests;

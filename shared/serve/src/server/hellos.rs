//! Hellos of clients: who may sit down, and where the run begins.

use super::{
    Phase, RankServer, ServeError, StartCandidates,
    links::{OutgoingFrame, RankLinkEvent, RankLinkEventKind},
    rank_states::{RankLinkId, RankStates},
};
use crate::{
    cursor::{StreamIdentity, short_name},
    framing::{ClientHello, RankHello, SocketFrameKind},
};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::EpochPlan;
use gristmill_model::{RunToken, Visitation};
use gristmill_stream::{FetchError, ServedRanks};
use std::time::Duration;

/// How long ranks that have yet to come back to a restarted fetcher keep the others waiting.
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(3);

impl RankServer {
    /// RankStates a client; the inner error is why it is refused.
    pub(super) async fn on_hello(
        &mut self,
        link: RankLinkId,
        hello: ClientHello,
    ) -> Result<Result<(), String>, ServeError> {
        let rank_index = match self.rank_index_of(&hello) {
            Ok(rank_index) => rank_index,
            Err(why) => return Ok(Err(why)),
        };
        let (at, is_plain) = (hello.at(), hello.rank.is_none());
        if let Phase::Over(_) = self.phase {
            let (ranks, rank) = (self.own().run.ranks, self.states.rank(rank_index));
            let at = at.map(|at| self.beginning.past_end(ranks, rank, at));
            let goes_back = at.is_some_and(|at| at < Cursor::start_of(self.view.spec.epochs));
            let may_visit_again =
                self.beginning.is_open() && self.fetcher().visitation() != Visitation::AtMostOnce;
            if !(goes_back && may_visit_again) {
                return Ok(self.tell_end(link, at));
            }
            self.phase = Phase::Greeting;
        }
        if let Err(why) = self.states.check_end(rank_index, at) {
            return Ok(Err(why));
        }
        if self.states.link(rank_index).is_some() {
            self.links.wait(link, rank_index, hello);
            return Ok(Ok(()));
        }
        if [Phase::Greeting, Phase::Misplaced].contains(&self.phase) {
            self.begin(at).await;
        }
        let mut attached = self.states.sit(rank_index, at, link);
        let may_begin = self.phase != Phase::Closing && !self.fetcher().has_named_run();
        if let (Err(_), Some(at), true) = (&attached, at, may_begin) {
            // It went back to an older checkpoint, or has a later one.
            self.begin_anew(at).await;
            attached = self.states.sit(rank_index, Some(at), link);
        }
        if attached.is_ok() {
            self.links.rank_index(link, rank_index, is_plain);
            self.expect_others();
            if let Some(at) = at.filter(|_| is_plain) {
                self.states.keep(rank_index, at);
            }
        }
        Ok(attached)
    }

    /// A trainer that has not named its run begins another one at `at`.
    async fn begin_anew(&mut self, at: Cursor) {
        // Should there be no such place, a trainer without a checkpoint goes on after the last acknowledgement.
        let durable = self.states.durable();
        self.beginning.kept = self.beginning.kept.map(|_| durable);
        self.beginning.durable = durable;
        self.named = Some(at);
        self.begin_run(at).await;
        self.phase = Phase::Locating;
    }

    /// A rank has come back to a restarted fetcher: the others have some time to do so.
    fn expect_others(&mut self) {
        let is_first = self.unknown_until.is_none() && self.states.is_waiting_for_unknown();
        if self.beginning.is_successor() && is_first {
            self.unknown_until = Some(self.clock.monotonic() + UNKNOWN_TIMEOUT);
        }
    }

    /// Takes the splits of the job, which tell its batches from those of others.
    pub(super) fn divide(&mut self, plan: EpochPlan) {
        self.view.plan = Some(plan);
        self.identity = StreamIdentity::from_view(&self.view);
    }

    /// The index of a rank among those of this fetcher.
    fn rank_index_of(
        &self,
        ClientHello { identity, rank, .. }: &ClientHello,
    ) -> Result<usize, String> {
        let ServedRanks { run, range, .. } = self.own();
        let holder =
            if rank.is_some() { "the rank's checkpoint" } else { "the trainer's checkpoint" };
        if let Some(why) = identity.mismatch(&self.identity, holder) {
            return Err(why);
        }
        let count = run.ranks.count.get();
        let Some(RankHello { rank, of, run: name, replicas }) = rank else {
            return match count {
                1 => Ok(0),
                _ => Err("this fetcher serves ranks: say hello with GMH1, which names the rank"
                    .to_owned()),
            };
        };
        if *of != count && !self.fetcher().has_named_run() {
            return Err(format!(
                "rank {rank} says hello, and this fetcher serves one trainer of all batches: start it with --ranks"
            ));
        }
        if *of != count {
            return Err(format!(
                "rank {rank} is of {of} ranks, and this fetcher's run has {count}: start all with the same number"
            ));
        }
        let own = run.ranks.replicas;
        if let Some(other) = replicas.filter(|replicas| *replicas != own) {
            return Err(format!(
                "rank {rank} says that replicas are {other}, and in this fetcher's run they are {own}: start all with \
                 the same --replicas"
            ));
        }
        let token = name.as_deref().map(RunToken::from_name);
        if let Some(token) = token.filter(|token| *token != run.token) {
            let name = short_name(name.as_deref().unwrap_or_default());
            return Err(format!(
                "rank {rank} is of run {name} (token {token}), and this fetcher serves the run with token {}: give \
                 both the same --run",
                run.token
            ));
        }
        if (range.first..range.end()).contains(rank) {
            Ok((rank - range.first) as usize)
        } else {
            Err(format!("this fetcher serves {range} of {count}, and not rank {rank}"))
        }
    }

    /// Answers a rank of a job that was done before.
    fn tell_end(&mut self, link: RankLinkId, at: Option<Cursor>) -> Result<(), String> {
        let end = Cursor::start_of(self.view.spec.epochs);
        if at != Some(end) {
            return Err(self.done());
        }
        self.has_reported_end = true;
        let frame = OutgoingFrame::new(SocketFrameKind::End, end, self.summary(true));
        self.links.send(link, vec![frame]);
        Ok(())
    }

    /// Decides where the run begins, and opens the stream there.
    async fn begin(&mut self, hello: Option<Cursor>) {
        let at = self.beginning.with(hello);
        self.set_beginning(at).await;
        self.named = hello;
        self.phase = Phase::Locating;
    }

    async fn set_beginning(&mut self, at: Cursor) {
        if at == self.opened {
            self.states = self.states_at(at);
        } else {
            self.begin_run(at).await;
        }
    }

    /// Opens the stream of a run that begins at `at`.
    async fn begin_run(&mut self, at: Cursor) {
        self.steps.begin_run(at).await;
        self.opened = self.fetcher().begin();
        self.states = self.states_at(self.opened);
    }

    /// The states of a run that begins at `at`.
    pub(super) fn states_at(&self, at: Cursor) -> RankStates {
        let mut states = RankStates::new(self.own(), self.view.spec.epochs, at, self.acknowledged);
        states.know_end(self.beginning.ended);
        states
    }

    /// The beginning is located: asks the coordinator to accept the ranks. A later position than the stored one is
    /// stored first, an earlier one once it is accepted: what a restart needs must not be deleted.
    pub(super) fn join(&mut self) -> Result<(), ServeError> {
        if self.may_be_gone() && self.fetcher().is_at_end() {
            self.states.has_nothing_left = true;
        }
        if self.opened >= self.saved {
            self.save(self.opened)?;
        }
        self.fetcher().announce();
        self.phase = Phase::Joining;
        Ok(())
    }

    /// The stream failed. An error about a place that a rank named concerns the ranks only.
    pub(super) async fn on_failure(&mut self, error: FetchError) -> Result<(), ServeError> {
        let is_open = self.beginning.is_open();
        let is_early = [Phase::Greeting, Phase::Locating, Phase::Joining].contains(&self.phase);
        if is_early && error.is_of_place() && self.is_of_kept() {
            return Err(self.kept_error(error));
        }
        match (self.phase, error) {
            (Phase::Greeting, error) if error.is_of_place() && is_open => {
                self.phase = Phase::Misplaced;
                Ok(())
            }
            (Phase::Joining, FetchError::RunBegan { from, .. }) if self.can_adopt() => {
                tracing::info!("the run was begun at {from} by another fetcher: going on there");
                self.adopt(from).await;
                Ok(())
            }
            (Phase::Locating | Phase::Joining, error) if error.is_of_place() && is_open => {
                for (_, link) in self.states.links() {
                    self.links.refuse(link, &error.to_string());
                }
                self.named = None;
                let known = self.beginning.known();
                self.set_beginning(known).await;
                self.phase = Phase::Greeting;
                Ok(())
            }
            (_, error) => Err(error.into()),
        }
    }

    /// Whether the run is to begin where the state file says.
    fn is_of_kept(&self) -> bool {
        let StartCandidates { kept, .. } = self.beginning;
        self.can_adopt() && kept.is_some() && self.cursors.name().is_some()
    }

    /// An error about the stored position, with the name of its store.
    fn kept_error(&self, error: FetchError) -> ServeError {
        let name = self.cursors.name().unwrap_or_default();
        match error {
            FetchError::Collected(_) if self.fetcher().is_job_done() => {
                ServeError::Over(self.done())
            }
            FetchError::Collected(why) => ServeError::Over(format!("{name}: {why}")),
            FetchError::Misplaced(why) => ServeError::State(format!("{name}: {why}")),
            error => error.into(),
        }
    }

    /// Whether nobody named where the run begins.
    fn can_adopt(&self) -> bool {
        self.beginning.is_open() && self.named.is_none()
    }

    /// Begins the run at `from`; ranks that are connected have named nothing else.
    async fn adopt(&mut self, from: Cursor) {
        let links = self.states.links();
        self.set_beginning(from).await;
        for (rank_index, link) in links {
            if let Err(why) = self.states.sit(rank_index, None, link) {
                self.links.refuse(link, &why);
            }
        }
        self.phase = Phase::Locating;
    }

    /// Detaches a link from its rank, and attaches a client that waits for it.
    pub(super) async fn pass_rank_on(
        &mut self,
        rank_index: usize,
        link: RankLinkId,
    ) -> Result<(), ServeError> {
        if self.states.link(rank_index) != Some(link) {
            return Ok(());
        }
        self.states.leave(rank_index);
        tracing::info!("rank {} left", self.own().range.first as usize + rank_index);
        let Some((link, hello)) = self.links.waiting_for(rank_index) else { return Ok(()) };
        if let Err(why) = self.on_hello(link, hello).await? {
            self.links.refuse(link, &why);
        }
        for message in self.links.take_deferred(link) {
            let event = RankLinkEvent { link, what: RankLinkEventKind::Message(message) };
            Box::pin(self.on_event(event)).await?;
        }
        Ok(())
    }
}

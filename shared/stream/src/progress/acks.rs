//! The cursor protocol: the generation of this run, its progress, and the next acknowledgement.

use super::{ReaderAnswer, ReaderMembership, ReaderRequest};
use crate::ServedRanks;
use gristmill_model::splits::{Cursor, ProgressAck, SplitPlace};
use gristmill_model::{Epoch, Nonce};
use std::collections::BTreeMap;

/// Bits of a generation that distinguish runs that begin in the same millisecond.
const NONCE_BITS: u32 = 16;

/// A trainer's position, and the coordinator's knowledge of it. Times and nonces are arguments.
#[derive(Debug)]
pub(crate) struct AckTracker {
    /// The generation of this run, and that of the run it takes over from, once known.
    generation: Option<(u64, u64)>,
    /// Every generation of this process; none of them belongs to another trainer.
    own: Vec<u64>,
    /// Whether [`AckTracker::first_refused`] has found that this fetcher takes over.
    was_refused: bool,
    began: Option<Began>,
    /// Whether the trainer has confirmed where it begins; only then may it take over the run.
    announced: bool,
    /// The furthest durable batch of this generation that may have reached the coordinator.
    sent: Option<Cursor>,
    delivered: SplitPlace,
    durable: Cursor,
    durable_place: SplitPlace,
    /// First place that a restart needs, by the batch it restarts at.
    resume_places: BTreeMap<Cursor, SplitPlace>,
    /// Batches of the epochs that the stream has passed.
    ended: BTreeMap<Epoch, u64>,
    acked: Option<ProgressAck>,
    /// Whether the coordinator has accepted where this run of the trainer begins; the table may have lost that since.
    was_accepted: bool,
    membership: ReaderMembership,
}

/// The consequence of a refusal of a first acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstRefusal {
    /// Another trainer reads the job.
    Stands,
    /// It stands unless the next answer names a generation of this process.
    InDoubt,
    /// A late message of a fetcher that has ended came first: each rank of a run has one fetcher. Once.
    TakesOver,
}

/// The beginning of this run of the trainer.
#[derive(Debug, Clone, Copy)]
struct Began {
    /// The first batch of its stream.
    at: Cursor,
    /// Durable according to its first report, and the first split that a restart there needs.
    durable: Cursor,
    durable_place: SplitPlace,
}

impl AckTracker {
    /// A reader of `own` that resumes at batch `durable`.
    pub fn new(own: ServedRanks, durable: Cursor) -> Self {
        let place = SplitPlace::start_of(durable.epoch);
        Self {
            generation: None,
            own: Vec::new(),
            was_refused: false,
            began: None,
            announced: false,
            sent: None,
            delivered: place,
            durable,
            durable_place: place,
            resume_places: BTreeMap::new(),
            ended: BTreeMap::new(),
            acked: None,
            was_accepted: false,
            membership: ReaderMembership::new(own),
        }
    }

    /// Takes over from the run of generation `last`, unless this run has a generation. The new one is later
    /// than `last` even if this host's clock is behind; `nonce` distinguishes runs that begin at the same time.
    pub fn take_over(&mut self, last: u64, now_ms: u64, nonce: Nonce) {
        if self.generation.is_some() {
            return;
        }
        let generation = later(last, now_ms, nonce);
        self.generation = Some((generation, last));
        self.own.push(generation);
    }

    /// The first acknowledgement, or a reader's first report, was refused because another came first. Drops the
    /// generation unless that stands.
    pub fn first_refused(&mut self) -> FirstRefusal {
        if self.was_accepted {
            return FirstRefusal::Stands;
        }
        let is_joined = self.membership.is_joined();
        let refusal = if !std::mem::replace(&mut self.was_refused, true) {
            FirstRefusal::TakesOver
        } else if self.own.len() > 1 && !is_joined {
            FirstRefusal::InDoubt
        } else {
            return FirstRefusal::Stands;
        };
        if is_joined {
            self.membership.ask();
        } else {
            (self.generation, self.sent) = (None, None);
        }
        refusal
    }

    /// Whether `generation` is the one that this reader began.
    pub fn is_own(&self, generation: u64) -> bool {
        self.own.contains(&generation)
    }

    /// Notes that the trainer has confirmed where it begins.
    pub fn announce(&mut self) {
        self.announced = true;
    }

    /// The ranks of a run to serve from now on.
    pub fn serve(&mut self, own: ServedRanks) {
        self.withdraw();
        self.membership = ReaderMembership::new(own);
    }

    /// This reader's part in its run.
    pub fn membership(&self) -> &ReaderMembership {
        &self.membership
    }

    /// Whether the run may go on at batch `at`: it cannot go back before what it has sent.
    pub fn may_go_on_at(&self, at: Cursor) -> bool {
        self.membership.is_joined() && self.sent.is_none_or(|sent| at >= sent)
    }

    /// The content of the next poll. Progress is reported if that `is_due`, and by one of several readers that
    /// `beats` even if nothing is new.
    pub fn request(&mut self, is_due: bool, beats: bool) -> ReaderRequest {
        let (is_joined, is_alone) = (self.membership.is_joined(), self.membership.is_alone());
        let news = if is_due || !is_joined { self.send() } else { None };
        let again = self.acked.filter(|_| beats && is_joined && !is_alone);
        self.membership.request(news.or(again))
    }

    /// Records the answer to `request`. Returns why this reader must stop, if another has taken its place.
    pub fn answered(
        &mut self,
        request: &ReaderRequest,
        said: ReaderAnswer<'_>,
        now_ms: u64,
        nonce: Nonce,
    ) -> Option<String> {
        let (generation, standing) = said;
        self.membership.set_pace(standing);
        let number = later(standing.number, now_ms, nonce);
        if let Some(join) = &request.join {
            if self.membership.joined(join, said, number) && !self.membership.is_alone() {
                // The run has the generation of the reader that began it.
                self.generation = Some((generation, generation));
            }
            return None;
        }
        if !self.was_accepted {
            self.membership.take_place(said, number);
        }
        self.membership.superseded(said)
    }

    /// The coordinator refused this start: sends nothing until the trainer begins elsewhere.
    pub fn withdraw(&mut self) {
        (self.announced, self.began) = (false, None);
        (self.generation, self.sent, self.acked) = (None, None, None);
        self.was_accepted = false;
        self.membership.withdraw();
    }

    /// The stream restarts at batch `at`, which its trainer has yet to confirm. The run stays the same, and its ranks
    /// get the same batches again.
    pub fn reopen(&mut self, at: Cursor) {
        (self.announced, self.began) = (false, None);
        self.resume_places.clear();
        let place = SplitPlace::start_of(at.epoch);
        (self.delivered, self.durable, self.durable_place) = (place, at, place);
    }

    /// The stream continues with batch `at` and the split at `next`; a restart at `durable` needs splits from
    /// `needed` on.
    pub fn start_at(&mut self, at: Cursor, durable: Cursor, needed: SplitPlace, next: SplitPlace) {
        self.delivered = self.delivered.max(next);
        self.durable = self.durable.max(durable);
        self.durable_place = self.durable_place.max(needed);
        let (durable, durable_place) = (self.durable, self.durable_place);
        self.began = Some(Began { at: at.max(durable), durable, durable_place });
    }

    /// The batch that the stream begins with, once it is known.
    pub fn begins_at(&self) -> Option<Cursor> {
        self.began.map(|began| began.at)
    }

    /// Whether the coordinator has accepted where the stream begins.
    pub fn is_admitted(&self) -> bool {
        self.announced && self.began.is_some() && self.acked.is_some()
    }

    /// Whether the coordinator has yet to accept where the stream begins.
    pub fn is_unconfirmed(&self) -> bool {
        self.began.is_some() && self.acked.is_none()
    }

    /// A batch is about to be handed over; a restart at it would need splits from `resume_place` on.
    pub fn next_is(&mut self, batch: Cursor, resume_place: SplitPlace) {
        self.resume_places.insert(batch, resume_place);
    }

    /// Every split before `place` is in this host's memory, or with the trainer.
    pub fn note_passed(&mut self, place: SplitPlace) {
        self.delivered = self.delivered.max(place);
    }

    /// The stream has passed `epoch`, which has so many batches.
    pub fn note_epoch_passed(&mut self, epoch: Epoch, batches: u64) {
        self.ended.insert(epoch, batches);
        // The epochs of the last two checkpoints are asked for.
        self.ended = self.ended.split_off(&self.durable.epoch.saturating_sub(1));
    }

    /// The end of `epoch`, if the stream has passed it.
    pub fn end_of(&self, epoch: Epoch) -> Option<Cursor> {
        self.ended.get(&epoch).map(|batches| Cursor::new(epoch, *batches))
    }

    /// The first place not consumed.
    pub fn delivered(&self) -> SplitPlace {
        self.delivered
    }

    /// Everything before this batch is durable.
    pub fn durable(&self) -> Cursor {
        self.durable
    }

    /// Everything before `next` is durable: a restart begins there. Earlier positions are ignored.
    pub fn make_durable(&mut self, next: Cursor) {
        if next <= self.durable {
            return;
        }
        self.durable = next;
        // The batch at `next` may not have been handed over yet. The place needed by the latest known
        // batch is a safe, slightly early answer.
        let known = self.resume_places.range(..=next).next_back().map(|(_, place)| *place);
        let place = SplitPlace::start_of(next.epoch).max(known.unwrap_or_default());
        self.durable_place = self.durable_place.max(place);
        self.resume_places = self.resume_places.split_off(&next);
    }

    /// The acknowledgement to send now, if there is a new one. The first one holds only the start of this run,
    /// from which the coordinator detects whether another run came first.
    pub fn send(&mut self) -> Option<ProgressAck> {
        let ack = self.next()?;
        self.sent = self.sent.max(Some(ack.durable));
        Some(ack)
    }

    /// Records that `ack` was written; returns whether it belongs to this generation.
    pub fn acknowledged(&mut self, ack: ProgressAck) -> bool {
        // The stream may have restarted since.
        let is_current =
            self.generation.is_some_and(|(generation, _)| generation == ack.generation);
        if is_current {
            (self.acked, self.was_accepted) = (Some(ack), true);
        }
        is_current
    }

    /// The table is at `generation` and `delivered`. If it was further once, it has lost that: it is reported again.
    pub fn table_is_at(&mut self, generation: u64, delivered: SplitPlace) {
        if !self.membership.is_alone() {
            return;
        }
        let has_lost_run = self.generation.is_some_and(|(own, _)| generation < own);
        if has_lost_run && self.membership.is_joined() {
            self.membership.withdraw();
        }
        if has_lost_run || self.acked.is_some_and(|acked| delivered < acked.delivered) {
            self.acked = None;
        }
    }

    /// Whether the coordinator knows the latest progress.
    pub fn is_settled(&self) -> bool {
        self.acked.is_some() && !self.has_news()
    }

    /// Whether there is progress to report.
    pub fn has_news(&self) -> bool {
        self.next().is_some()
    }

    /// Splits delivered beyond the last acknowledged one, of epochs of `n_splits`.
    pub fn unreported_splits(&self, n_splits: u32) -> u64 {
        let reported = self.acked.map_or(0, |ack| ack.delivered.linear(n_splits));
        self.delivered.linear(n_splits).saturating_sub(reported)
    }

    fn next(&self) -> Option<ProgressAck> {
        let began = self.began.filter(|_| self.announced)?;
        let (durable, durable_place) = match self.acked {
            Some(_) => (self.durable, self.durable_place),
            None => (began.durable, began.durable_place),
        };
        let (generation, over) = self.generation?;
        // Ranks that took steps from an earlier fetcher may make more durable than this stream has come to.
        let delivered = self.delivered.max(durable_place);
        let local_workers = self.membership.own().local_workers;
        let ended = durable.epoch.checked_sub(1).and_then(|epoch| self.end_of(epoch));
        let ack = ProgressAck {
            generation,
            over,
            delivered,
            durable,
            durable_place,
            ended,
            local_workers,
        };
        (self.acked != Some(ack)).then_some(ack)
    }
}

/// A number that is later than `last` even if this host's clock is behind; `nonce` distinguishes those that are
/// chosen at the same time.
fn later(last: u64, now_ms: u64, nonce: Nonce) -> u64 {
    let [.., high, low] = nonce.0;
    let nonce = u64::from(u16::from_be_bytes([high, low]));
    let after = (last >> NONCE_BITS) + 1;
    (now_ms.max(after) << NONCE_BITS) | nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, split};
    use gristmill_model::splits::ranks::TailPolicy;
    use gristmill_model::wire::ReaderStanding;

    fn new() -> AckTracker {
        let all = crate::samples::own(1, 0..1, batch(0, 0), TailPolicy::Uneven);
        AckTracker::new(all, batch(0, 0))
    }

    /// The coordinator accepts what is sent.
    fn accept(acks: &mut AckTracker) -> ProgressAck {
        let request = acks.request(true, false);
        let ack = request.ack().unwrap();
        let run = Some(acks.membership().own().run);
        let standing = ReaderStanding { run, ..ReaderStanding::default() };
        assert_eq!(acks.answered(&request, (ack.generation, &standing), 1, Nonce([0; 8])), None);
        assert!(acks.acknowledged(ack));
        ack
    }

    fn begun() -> AckTracker {
        let mut acks = new();
        acks.take_over(0, 1, Nonce([0; 8]));
        acks.announce();
        acks
    }

    #[test]
    fn a_later_run_has_a_larger_generation_for_any_clock() {
        let generation = |last, now_ms, nonce| {
            let mut acks = new();
            acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
            acks.announce();
            assert_eq!(acks.next(), None, "nothing is sent before it is settled");
            acks.take_over(last, now_ms, Nonce([nonce; 8]));
            acks.next().unwrap().generation
        };
        let first = generation(0, 5_000, 9);
        assert!(generation(first, 1, 0) > first);
        assert!(generation(first, 9_000, 0) > first);
        assert_ne!(generation(first, 9_000, 0), generation(first, 9_000, 1));
    }

    #[test]
    fn durable_never_frees_what_a_restart_needs() {
        let mut acks = begun();
        acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        // Batch 2 joins a remainder of split 0, so a restart at 1 or 2 needs split 0.
        for (index, position, resume) in [(0, 0, 0), (1, 1, 0), (2, 1, 0), (3, 2, 2)] {
            acks.next_is(batch(0, index), split(0, resume));
            acks.note_passed(split(0, position));
        }
        acks.make_durable(batch(0, 2));
        let first = acks.next().unwrap();
        assert_eq!(first.durable, batch(0, 0), "first of all, where it begins");
        acks.acknowledged(first);
        assert_eq!(acks.next().unwrap().durable, batch(0, 2));
        assert_eq!(acks.next().unwrap().durable_place, split(0, 0));
        acks.make_durable(batch(0, 3));
        assert_eq!(acks.next().unwrap().durable_place, split(0, 2));
        acks.make_durable(batch(0, 1));
        assert_eq!(acks.next().unwrap().durable, batch(0, 3), "an earlier position is ignored");
        acks.make_durable(batch(1, 0));
        assert_eq!(acks.next().unwrap().durable_place, split(1, 0));
    }

    #[test]
    fn durable_batches_ahead_of_the_stream_count_as_delivered() {
        let mut acks = begun();
        acks.start_at(batch(0, 5), batch(0, 5), split(0, 1), split(0, 1));
        let first = acks.send().unwrap();
        assert!(acks.acknowledged(first));
        acks.make_durable(batch(1, 10));
        let ack = acks.next().unwrap();
        assert_eq!((ack.durable, ack.durable_place), (batch(1, 10), split(1, 0)));
        assert_eq!(ack.delivered, split(1, 0));
    }

    #[test]
    fn progress_that_the_table_lost_is_reported_again() {
        let mut acks = begun();
        acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        assert!(acks.request(true, false).join.is_some_and(|join| !join.is_successor));
        accept(&mut acks);
        acks.note_passed(split(0, 2));
        let second = accept(&mut acks);
        acks.table_is_at(second.generation, split(0, 2));
        assert_eq!(acks.request(true, false).ack(), None);
        acks.table_is_at(second.generation, split(0, 1));
        assert_eq!(acks.request(true, false).join, None, "the run is known");
        assert_eq!(accept(&mut acks), second);
        acks.table_is_at(second.generation - 1, split(0, 2));
        let join = acks.request(true, false).join.unwrap();
        assert!(join.is_successor && join.start == second, "the run itself is lost");
        // The table has lost the last report, and then the run: it is joined again although no report stands.
        accept(&mut acks);
        acks.table_is_at(second.generation, split(0, 0));
        acks.table_is_at(0, split(0, 0));
        assert!(acks.request(true, false).join.is_some());
    }

    #[test]
    fn a_run_cannot_go_back_before_what_it_sent() {
        let mut acks = begun();
        acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        assert!(!acks.may_go_on_at(batch(0, 0)), "it has not joined");
        let first = accept(&mut acks).generation;
        acks.make_durable(batch(0, 7));
        // Not sent yet: the trainer may still begin elsewhere.
        assert!(acks.may_go_on_at(batch(0, 5)));
        acks.reopen(batch(0, 5));
        assert_eq!(acks.next(), None, "its trainer has yet to confirm");
        acks.start_at(batch(0, 5), batch(0, 5), split(0, 1), split(0, 2));
        acks.announce();
        let ack = acks.send().unwrap();
        assert_eq!((ack.generation, ack.durable, ack.delivered), (first, batch(0, 5), split(0, 2)));
        // In flight while the stream goes back before it.
        assert!(acks.may_go_on_at(batch(0, 5)) && !acks.may_go_on_at(batch(0, 3)));
        acks.serve(ServedRanks::one(Nonce([1; 8]), batch(0, 3)));
        acks.reopen(batch(0, 3));
        assert!(!acks.acknowledged(ack));
        acks.start_at(batch(0, 3), batch(0, 3), split(0, 1), split(0, 1));
        acks.announce();
        assert_eq!(acks.next(), None, "another generation is to be settled");
        acks.take_over(first, 2, Nonce([0; 8]));
        let ack = acks.send().unwrap();
        assert!(ack.generation > first && ack.over == first && ack.durable == batch(0, 3));
        assert!(acks.is_own(first) && acks.is_own(ack.generation) && !acks.is_own(9));
    }

    #[test]
    fn a_refused_generation_is_replaced_once_and_if_the_other_may_be_its_own() {
        let mut acks = begun();
        assert_eq!(acks.first_refused(), FirstRefusal::TakesOver, "a dead fetcher's late message");
        assert!(!acks.is_settled() && acks.next().is_none());
        acks.take_over(1 << 20, 1, Nonce([0; 8]));
        assert_eq!(acks.first_refused(), FirstRefusal::InDoubt, "the other may be its own");
        let mut acks = begun();
        acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        accept(&mut acks);
        assert_eq!(acks.first_refused(), FirstRefusal::Stands, "another trainer has begun");
        acks.table_is_at(0, split(0, 0));
        assert_eq!(acks.first_refused(), FirstRefusal::Stands, "also in a table that lost it");
    }

    #[test]
    fn only_news_are_sent() {
        let mut acks = begun();
        acks.start_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        assert!(acks.is_unconfirmed() && !acks.is_admitted());
        let ack = acks.next().unwrap();
        acks.acknowledged(ack);
        assert!(acks.is_admitted() && acks.is_settled());
        assert_eq!(acks.next(), None);
        acks.note_passed(split(0, 3));
        assert_eq!(acks.unreported_splits(10), 3);
        acks.note_passed(split(1, 2));
        assert_eq!(acks.unreported_splits(10), 12);
        assert!(acks.next().is_some() && !acks.is_settled());
    }
}

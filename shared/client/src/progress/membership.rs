//! The part of a reader in its run: how it joins, what it reports, and how often it may poll.

use crate::OwnRanks;
use gristmill_model::splits::Ack;
use gristmill_model::splits::readers::{RankRange, Report, poll_every_ms, report_every_ms};
use gristmill_model::splits::run::{Join, TrainingRun};
use gristmill_model::wire::ReaderPolled;
use std::time::Duration;

/// The content of a poll beside its measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// The poll of a trainer that takes every batch, or of one that has yet to begin.
    Poll { ack: Option<Ack> },
    /// The poll of a reader of a run.
    Reader { ranks: RankRange, join: Option<Join>, report: Option<Report> },
}

impl Request {
    /// The progress that it reports.
    pub fn ack(&self) -> Option<Ack> {
        match self {
            Self::Poll { ack } => *ack,
            Self::Reader { report, .. } => report.map(|report| report.ack),
        }
    }
}

/// The coordinator's answer about the run and the reader of these ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    pub run: TrainingRun,
    pub generation: u64,
    pub reader: u64,
    pub next_poll_ms: u64,
    pub next_report_ms: u64,
}

impl Said {
    pub fn of(answer: &ReaderPolled) -> Self {
        let ReaderPolled { run, reader, next_poll_ms, next_report_ms, .. } = *answer;
        let generation = answer.polled.generation;
        Self { run, generation, reader, next_poll_ms, next_report_ms }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has not joined, or not learnt that it has.
    Apart,
    /// It is one of the run of this generation, and takes the place of reader `over`, 0 if none.
    Joined { generation: u64, number: u64, over: u64 },
}

/// A reader of some or all ranks of a run.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    own: OwnRanks,
    standing: Standing,
    /// Whether it reports nothing before the next answer.
    asks: bool,
    next_poll_ms: u64,
    next_report_ms: u64,
}

impl Membership {
    pub fn new(own: OwnRanks) -> Self {
        let readers = own.run.ranks.count.get().div_ceil(own.range.count.get());
        Self {
            own,
            standing: Standing::Apart,
            asks: false,
            next_poll_ms: poll_every_ms(readers, own.range.first == 0),
            next_report_ms: report_every_ms(readers),
        }
    }

    pub fn own(&self) -> &OwnRanks {
        &self.own
    }

    /// Whether the coordinator has accepted it as one of its run.
    pub fn is_joined(&self) -> bool {
        self.standing != Standing::Apart
    }

    /// Whether it is the only reader, which acknowledges on the job's progress itself.
    pub fn is_alone(&self) -> bool {
        self.own.are_all()
    }

    /// The coordinator refused it.
    pub fn withdraw(&mut self) {
        self.standing = Standing::Apart;
    }

    /// The next request; `ack` is the progress to report, if that is due. One that has not joined begins with it.
    pub fn request(&self, ack: Option<Ack>) -> Request {
        let OwnRanks { run, range: ranks, is_successor } = self.own;
        match (self.standing, ack) {
            (Standing::Apart, None) => Request::Poll { ack: None },
            (Standing::Apart, Some(start)) => {
                let join = Some(Join { run, start, is_successor });
                // The only reader reports once, so that a reader of some ranks finds that it is there.
                let number = start.generation;
                let report = Report { reader: number, over_reader: 0, ranks, ack: start };
                Request::Reader { ranks, join, report: self.is_alone().then_some(report) }
            }
            (Standing::Joined { .. }, ack) if self.is_alone() => Request::Poll { ack },
            // First it learns whose place it takes.
            (Standing::Joined { .. }, _) if self.asks => {
                Request::Reader { ranks, join: None, report: None }
            }
            (Standing::Joined { number, over, .. }, ack) => {
                let report = |ack| Report { reader: number, over_reader: over, ranks, ack };
                Request::Reader { ranks, join: None, report: ack.map(report) }
            }
        }
    }

    /// Records that `join` was answered. `number` is the reader's own from now on, unless it is the only one.
    /// Returns whether it has joined by that; the stream may have begun elsewhere since.
    pub fn joined(&mut self, join: &Join, said: &Said, number: u64) -> bool {
        if join.run != self.own.run || self.is_joined() {
            return false;
        }
        let Said { generation, reader: over, .. } = *said;
        self.standing = Standing::Joined { generation, number, over };
        true
    }

    /// Reports nothing before an answer says whose place it takes.
    pub fn ask(&mut self) {
        self.asks = true;
    }

    /// Takes the place of the reader that the answer names, with a number of at least `number`. Only before a report
    /// of this reader is accepted.
    pub fn take_place(&mut self, said: &Said, number: u64) {
        if let Standing::Joined { generation, number: own, over } = &mut self.standing
            && said.generation == *generation
            && ![*own, *over].contains(&said.reader)
        {
            (*own, *over) = (number.max(*own), said.reader);
        }
    }

    /// Why this reader must stop, if the answer to a later request says so.
    pub fn superseded(&self, said: &Said) -> Option<String> {
        let Standing::Joined { generation, number, .. } = self.standing else { return None };
        if said.generation != generation || said.run.token != self.own.run.token {
            return Some("a later run has taken over".to_owned());
        }
        let ranks = self.own.range;
        (said.reader > number).then(|| format!("another fetcher has taken over {ranks}"))
    }

    /// Records an answer: how soon the next poll and the next report may come.
    pub fn set_pace(&mut self, said: &Said) {
        self.asks = false;
        (self.next_poll_ms, self.next_report_ms) = (said.next_poll_ms, said.next_report_ms);
    }

    /// Least time between the beginnings of two polls.
    pub fn poll_every(&self) -> Duration {
        Duration::from_millis(self.next_poll_ms)
    }

    /// Least time between two reports.
    pub fn report_every_ms(&self) -> u64 {
        self.next_report_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, split};
    use gristmill_model::RunToken;
    use gristmill_model::splits::ranks::{Ranks, Tail};
    use std::num::NonZeroU32;

    fn own(first: u32, count: u32, of: u32) -> OwnRanks {
        let count_of = |n| NonZeroU32::new(n).unwrap();
        let ranks = Ranks { count: count_of(of), from: batch(0, 0), tail: Tail::Drop };
        let run = TrainingRun { token: RunToken::of("t"), ranks };
        OwnRanks { run, range: RankRange { first, count: count_of(count) }, is_successor: false }
    }

    fn ack(generation: u64) -> Ack {
        let (delivered, durable) = (split(0, 0), batch(0, 0));
        Ack { generation, over: 0, delivered, durable, durable_place: delivered }
    }

    fn said(generation: u64, reader: u64) -> Said {
        let run = own(0, 1, 4).run;
        Said { run, generation, reader, next_poll_ms: 7, next_report_ms: 9 }
    }

    fn join_of(request: Request) -> Join {
        match request {
            Request::Reader { join: Some(join), .. } => join,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_of_several_joins_and_then_reports_by_its_number() {
        let mut second = Membership::new(own(2, 2, 4));
        assert_eq!(second.request(None), Request::Poll { ack: None }, "it only prefetches");
        let first = second.request(Some(ack(5)));
        assert_eq!(first.ack(), None, "it does not know the run's generation");
        assert_eq!(second.request(Some(ack(5))), first, "a lost answer: the same again");
        let join = join_of(first);
        assert!(second.joined(&join, &said(3, 40), 41));
        assert!(!second.joined(&join, &said(3, 41), 99), "an answer that comes twice");
        let Request::Reader { join: None, report: Some(report), .. } = second.request(Some(ack(3)))
        else {
            panic!("it reports");
        };
        assert_eq!((report.reader, report.over_reader, report.ranks.first), (41, 40, 2));
        let ranks = second.own().range;
        assert_eq!(second.request(None), Request::Reader { ranks, join: None, report: None });
    }

    #[test]
    fn the_only_reader_polls_as_a_trainer_does_once_it_has_joined() {
        let mut all = Membership::new(own(0, 4, 4));
        let request = all.request(Some(ack(5)));
        assert_eq!(request.ack(), Some(ack(5)));
        assert!(all.joined(&join_of(request), &said(5, 5), 6));
        assert_eq!(all.request(Some(ack(5))), Request::Poll { ack: Some(ack(5)) });
        assert_eq!(all.request(None), Request::Poll { ack: None });
        let pace = (all.poll_every(), all.report_every_ms());
        assert_eq!(pace, (Duration::ZERO, 0), "one that is alone is not slowed");
    }

    #[test]
    fn a_reader_stops_for_a_later_run_and_for_its_successor() {
        let mut reader = Membership::new(own(0, 1, 4));
        let join = join_of(reader.request(Some(ack(5))));
        assert_eq!(reader.superseded(&said(3, 0)), None, "it has not joined");
        reader.joined(&join, &said(3, 40), 41);
        for passing in [said(3, 40), said(3, 41)] {
            assert_eq!(reader.superseded(&passing), None);
        }
        assert_eq!(
            reader.superseded(&said(3, 42)).unwrap(),
            "another fetcher has taken over rank 0"
        );
        assert_eq!(reader.superseded(&said(4, 41)).unwrap(), "a later run has taken over");
        reader.withdraw();
        assert!(!reader.is_joined());
    }

    #[test]
    fn a_reader_refused_for_a_late_report_asks_whose_place_it_takes() {
        let mut reader = Membership::new(own(2, 2, 4));
        reader.joined(&join_of(reader.request(Some(ack(5)))), &said(3, 0), 41);
        let ranks = reader.own().range;
        reader.ask();
        assert_eq!(
            reader.request(Some(ack(3))),
            Request::Reader { ranks, join: None, report: None },
            "it reports nothing before the answer"
        );
        reader.set_pace(&said(3, 50));
        reader.take_place(&said(4, 60), 61);
        reader.take_place(&said(3, 50), 51);
        assert_eq!(reader.superseded(&said(3, 50)), None);
        let Request::Reader { report: Some(report), .. } = reader.request(Some(ack(3))) else {
            panic!("it reports");
        };
        assert_eq!((report.reader, report.over_reader), (51, 50));
    }

    #[test]
    fn an_answer_to_a_join_of_another_beginning_is_ignored() {
        let mut reader = Membership::new(own(0, 1, 4));
        let mut join = join_of(reader.request(Some(ack(5))));
        join.run.ranks.from = batch(0, 8);
        assert!(!reader.joined(&join, &said(3, 40), 41) && !reader.is_joined());
    }

    #[test]
    fn the_coordinator_sets_the_pace_of_many() {
        let mut reader = Membership::new(own(9, 1, 256));
        assert_eq!(reader.poll_every(), Duration::from_millis(1_024), "before its first answer");
        reader.set_pace(&said(3, 0));
        assert_eq!((reader.poll_every(), reader.report_every_ms()), (Duration::from_millis(7), 9));
    }
}

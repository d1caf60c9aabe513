//! The beginning of the ranks of a fetcher.

use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::{Cursor, TransitionRefusal};
use gristmill_model::wire::JobStatus;
use gristmill_stream::ServedRanks;

/// The positions that name the beginning, before any rank says hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartCandidates {
    /// An earlier fetcher of the same run had made this durable for these ranks.
    pub succeeds: Option<Cursor>,
    /// A person named the beginning of the run.
    pub resume: Option<Cursor>,
    /// The state file has this position.
    pub kept: Option<Cursor>,
    /// The position that the job's last run had made durable.
    pub durable: Cursor,
    /// The end of the last epoch that is known to have ended.
    pub ended: Option<Cursor>,
}

impl StartCandidates {
    /// The beginning of a trainer that names no run, after what the job's status says is durable.
    pub fn from_job_status(status: &JobStatus, kept: Option<Cursor>) -> Self {
        Self { kept, durable: status.durable, ended: ended(status), ..Self::default() }
    }

    /// The beginning of the ranks `own`, which gain the first batch and the epochs of their run: those of the run as it
    /// began, if it has begun. `resume` is named by a person, `kept` by the state file.
    ///
    /// A fetcher of a run that has begun takes the place of an earlier one, even if the service knows of none:
    /// that one may have handed out batches before its first report.
    ///
    /// # Errors
    /// One line, if the run began elsewhere than at `resume`, or this reader disagrees about it.
    pub fn from_run_status(
        status: &JobStatus,
        mut own: ServedRanks,
        resume: Option<Cursor>,
        kept: Option<Cursor>,
    ) -> Result<(Self, ServedRanks), String> {
        let run = &mut own.run;
        let (durable, ended) = (status.durable, ended(status));
        let Some(known) = status.run.as_ref().filter(|known| known.run.token == run.token) else {
            let new = Self { succeeds: None, resume, kept, durable, ended };
            run.ranks.from = new.known();
            return Ok((new, own));
        };
        if !known.run.is_alike(run) {
            return Err(TransitionRefusal::RunDiffers { run: known.run, reader: *run }.to_string());
        }
        let from = known.run.ranks.from;
        if let Some(resume) = resume.filter(|resume| *resume != from) {
            return Err(format!(
                "--resume is at {resume}, and this run began at {from}: give a new run another --run"
            ));
        }
        let earlier = known.readers.iter().find(|reader| reader.progress.ranks == own.range);
        (run.ranks.from, run.epochs) = (from, run.epochs.or(known.run.epochs));
        own.is_successor = true;
        // The only reader reports the job's progress, and none of its own.
        let succeeds = if own.are_all() {
            durable
        } else {
            earlier.map_or(from, |reader| reader.progress.durable)
        };
        let succeeds = Some(succeeds.max(from));
        Ok((Self { succeeds, resume: None, kept: None, durable, ended }, own))
    }

    /// The beginning as far as is known.
    pub fn known(&self) -> Cursor {
        self.with(None)
    }

    /// The beginning if the first rank's checkpoint goes on at `hello`.
    pub fn with(&self, hello: Option<Cursor>) -> Cursor {
        let Self { succeeds, resume, kept, durable, .. } = *self;
        succeeds.or(resume).or(hello).or(kept).unwrap_or(durable)
    }

    /// The place at which one of `ranks` goes on that wants `at` next: the next epoch, if it has no batch left in that of
    /// `at`. They may be of a run that has yet to begin there.
    pub fn past_end(&self, ranks: RunRanks, rank: u32, at: Cursor) -> Cursor {
        let ranks = RunRanks { from: ranks.from.min(at), ..ranks };
        self.ended.map_or(at, |ended| ranks.past_end(rank, at, ended))
    }

    /// Whether the fetcher takes the place of an earlier one of the same run.
    pub fn is_successor(&self) -> bool {
        self.succeeds.is_some()
    }

    /// Whether the first rank's checkpoint decides.
    pub fn is_open(&self) -> bool {
        self.succeeds.or(self.resume).is_none()
    }
}

/// The end of the last epoch that some reader of the job's run has passed.
fn ended(status: &JobStatus) -> Option<Cursor> {
    let run = status.run.as_ref()?;
    run.readers.iter().map(|reader| reader.progress.ended).max().flatten().max(run.ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::RunToken;
    use gristmill_model::splits::SplitPlace;
    use gristmill_model::splits::ranks::{KnownBatches, RankAssignment, TailPolicy};
    use gristmill_model::splits::readers::{RankRange, ReaderProgress};
    use gristmill_model::splits::run::TrainingRun;
    use gristmill_model::wire::{ReaderStatus, RunStatus};
    use std::num::NonZeroU32;

    #[test]
    fn a_run_goes_on_before_a_person_a_checkpoint_and_a_file_are_asked() {
        let at = |batch_index| Cursor::new(0, batch_index);
        let job = StartCandidates { durable: at(1), ..StartCandidates::default() };
        assert_eq!((job.known(), job.with(Some(at(9)))), (at(1), at(9)));
        let file = StartCandidates { kept: Some(at(2)), ..job };
        assert_eq!((file.known(), file.with(Some(at(9)))), (at(2), at(9)));
        let person = StartCandidates { resume: Some(at(3)), ..file };
        assert_eq!(person.with(Some(at(9))), at(3));
        assert!(file.is_open() && !person.is_open() && !person.is_successor());
        let successor = StartCandidates { succeeds: Some(at(4)), ..person };
        assert_eq!(successor.with(Some(at(9))), at(4));
        assert!(successor.is_successor() && !successor.is_open());
    }

    fn status(known: Option<RunStatus>) -> JobStatus {
        let durable = Cursor::new(0, 4);
        JobStatus { durable, run: known, ..gristmill_stream::samples::status() }
    }

    #[test]
    fn a_new_run_begins_as_it_is_configured_and_a_known_one_goes_on() {
        let at = |batch_index| Cursor::new(0, batch_index);
        let of = NonZeroU32::new(4).unwrap();
        let range = RankRange { first: 2, count: NonZeroU32::new(2).unwrap() };
        let ranks = RunRanks::new(of, Cursor::default(), TailPolicy::Drop);
        let run = TrainingRun { token: RunToken::from_name("r"), ranks, epochs: None };
        let own = ServedRanks { range, ..ServedRanks::all(run) };
        let (new, begun) =
            StartCandidates::from_run_status(&status(None), own, Some(at(8)), Some(at(6))).unwrap();
        assert_eq!((new.known(), begun.run.ranks.from, begun.is_successor), (at(8), at(8), false));
        let (new, begun) =
            StartCandidates::from_run_status(&status(None), own, None, None).unwrap();
        assert_eq!((new.known(), begun.run.ranks.from), (at(4), at(4)));

        let ranks = RunRanks::new(of, at(8), TailPolicy::Drop);
        let run = TrainingRun { token: RunToken::from_name("r"), ranks, epochs: Some(3) };
        let begun = RunStatus { run, readers: Vec::new(), uncovered: None, ended: None };
        let known = status(Some(begun.clone()));
        let (joins, joined) =
            StartCandidates::from_run_status(&known, own, None, Some(at(6))).unwrap();
        assert_eq!((joins.known(), joined.run, joined.is_successor), (at(8), run, true));
        let progress = ReaderProgress { ranks: range, durable: at(12), ..progress() };
        let earlier = ReaderStatus { progress, lag_batches: 0, silent_ms: 0 };
        let served = status(Some(RunStatus { readers: vec![earlier], ..begun.clone() }));
        let (goes_on, joined) =
            StartCandidates::from_run_status(&served, own, Some(at(8)), None).unwrap();
        assert_eq!((goes_on.known(), joined.run, joined.is_successor), (at(12), run, true));
        let why = StartCandidates::from_run_status(&served, own, Some(at(9)), None).unwrap_err();
        assert!(
            why.contains("--resume is at batch 9 of epoch 0, and this run began at batch 8"),
            "{why}"
        );
        let tail = TrainingRun { ranks: RunRanks { tail: TailPolicy::Uneven, ..run.ranks }, ..run };
        let tail = ServedRanks { run: tail, ..own };
        let why = StartCandidates::from_run_status(&served, tail, None, None).unwrap_err();
        assert!(why.contains("tail drop for 3 epochs") && why.contains("tail uneven"), "{why}");
        let other =
            ServedRanks { run: TrainingRun { token: RunToken::from_name("s"), ..run }, ..own };
        let (later, begun) =
            StartCandidates::from_run_status(&served, other, Some(at(9)), None).unwrap();
        assert_eq!((later.known(), begun.is_successor), (at(9), false));
    }

    #[test]
    fn a_rank_is_past_the_end_if_a_run_that_begins_there_has_nothing_for_it() {
        let known = |count| KnownBatches { count, is_all: true };
        for count in 1..=4 {
            let count = NonZeroU32::new(count).unwrap();
            for (tail, batches, from) in [TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven]
                .into_iter()
                .flat_map(|tail| {
                    (0..9).flat_map(move |batches| (0..9).map(move |from| (tail, batches, from)))
                })
            {
                let (end, at) = (Cursor::new(1, batches), Cursor::new(1, from));
                let beginning = StartCandidates { ended: Some(end), ..StartCandidates::default() };
                let own = RunRanks::new(count, at, tail);
                for rank in 0..count.get() {
                    let step = own.step_of(at).unwrap();
                    let is_over = own.assign(step, rank, known(batches)) == RankAssignment::End;
                    let expected = if is_over && at <= end { Cursor::start_of(2) } else { at };
                    // The fetcher of a job that is done knows its end only, and not where the ranks were.
                    let begun = RunRanks { from: Cursor::start_of(2), ..own };
                    for ranks in [own, begun] {
                        assert_eq!(
                            beginning.past_end(ranks, rank, at),
                            expected,
                            "{ranks:?}, {at}"
                        );
                    }
                }
            }
        }
    }

    fn progress() -> ReaderProgress {
        let ranks = RankRange { first: 0, count: NonZeroU32::MIN };
        ReaderProgress {
            generation: 1,
            reader: 1,
            ranks,
            delivered: SplitPlace::default(),
            durable: Cursor::default(),
            durable_place: SplitPlace::default(),
            ended: None,
            heartbeat_ms: 0,
            local_workers: 0,
        }
    }
}

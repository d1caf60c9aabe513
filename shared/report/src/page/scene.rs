//! A timeline prepared for drawing: sorted, with every time known and every number finite.

use crate::number::amount;
use crate::{Timeline, TimelineDecision, TimelineEpoch, TimelineSample};

/// A timeline with gaps filled where possible.
pub(super) struct TimelineScene<'a> {
    pub timeline: &'a Timeline,
    /// Length of the time axis, above 0.
    pub end_s: f64,
    /// Finite times, ascending.
    pub samples: Vec<TimelineSample>,
    pub epochs: Vec<EpochSpan<'a>>,
    /// Decisions in timeline order, each with its time.
    pub decisions: Vec<(f64, &'a TimelineDecision)>,
}

/// An epoch on the time axis.
pub(super) struct EpochSpan<'a> {
    pub epoch: &'a TimelineEpoch,
    pub from_s: f64,
    pub to_s: f64,
}

impl TimelineScene<'_> {
    pub fn from_timeline(timeline: &Timeline) -> TimelineScene<'_> {
        let mut samples: Vec<TimelineSample> =
            timeline.samples.iter().copied().map(finite).collect();
        samples.retain(|sample| sample.t_s.is_finite() && sample.t_s >= 0.0);
        samples.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
        let epochs = spans(&timeline.epochs);
        let time = |t_s: f64| if t_s.is_finite() { amount(t_s) } else { 0.0 };
        let decisions = timeline.decisions.iter();
        let decisions: Vec<_> = decisions.map(|decided| (time(decided.t_s), decided)).collect();
        let last_sample = samples.last().map(|sample| sample.t_s);
        let seen_s = last_sample
            .into_iter()
            .chain(epochs.iter().map(|span| span.to_s))
            .chain(decisions.iter().map(|(t_s, _)| *t_s))
            .map(amount)
            .fold(0.0, f64::max);
        // Shorter runs have no visible extent.
        let end_s = if seen_s > 1e-6 { seen_s } else { 1.0 };
        TimelineScene { timeline, end_s, samples, epochs, decisions }
    }

    /// Batches delivered.
    pub fn batches(&self) -> u64 {
        // A timeline from elsewhere may have any numbers.
        let by_epochs =
            self.epochs.iter().map(|span| span.epoch.batches).fold(0, u64::saturating_add);
        self.samples.last().map_or(0, |sample| sample.batches).max(by_epochs)
    }

    /// Seconds that the trainer waited, and the total they are part of.
    pub fn waited(&self) -> Option<(f64, f64)> {
        let by_epoch = self.epochs.iter().filter_map(|span| {
            Some((amount(span.epoch.stalls.as_ref()?.total_s), span.to_s - span.from_s))
        });
        let sum = |sum: (f64, f64), next: (f64, f64)| (sum.0 + next.0, sum.1 + next.1);
        let (waited_s, of_s) = by_epoch.fold((0.0, 0.0), sum);
        if of_s > 0.0 {
            return Some((waited_s, of_s));
        }
        let mut before = 0;
        let by_sample = self.samples.iter().filter_map(|sample| {
            let batches = sample.batches.saturating_sub(before) as f64;
            before = sample.batches;
            Some((sample.stall_s? * batches, sample.batch_time_s? * batches))
        });
        let (waited_s, of_s) = by_sample.fold((0.0, 0.0), sum);
        (of_s > 0.0).then_some((waited_s, of_s))
    }

    /// Cumulative dollars: the epochs' cost spread over their time.
    pub fn cost_so_far(&self) -> Vec<(f64, f64)> {
        let mut so_far = 0.0;
        let mut points = Vec::new();
        for span in &self.epochs {
            let Some(usd) = span.epoch.cost_usd else { continue };
            points.push((span.from_s, so_far));
            so_far += amount(usd);
            points.push((span.to_s, so_far));
        }
        points
    }
}

fn finite(sample: TimelineSample) -> TimelineSample {
    let kept = |value: Option<f64>| value.filter(|value| value.is_finite()).map(amount);
    TimelineSample {
        batch_time_s: kept(sample.batch_time_s),
        stall_s: kept(sample.stall_s),
        step_s: kept(sample.step_s),
        workers: kept(sample.workers),
        queue_batches: kept(sample.queue_batches),
        ..sample
    }
}

fn spans(epochs: &[TimelineEpoch]) -> Vec<EpochSpan<'_>> {
    let mut spans: Vec<EpochSpan<'_>> = Vec::with_capacity(epochs.len());
    for epoch in epochs {
        let before = spans.last().map_or(0.0, |span| span.to_s);
        let from_s = epoch.start_s.filter(|start| start.is_finite()).map_or(before, amount);
        spans.push(EpochSpan { epoch, from_s, to_s: from_s + amount(epoch.seconds) });
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(t_s: f64, batches: u64) -> TimelineSample {
        TimelineSample { t_s, batches, ..TimelineSample::default() }
    }

    #[test]
    fn what_is_missing_is_found_elsewhere() {
        let epoch =
            |seconds, cost_usd| TimelineEpoch { seconds, cost_usd, ..TimelineEpoch::default() };
        let decided = |t_s, batch| TimelineDecision { t_s, batch, ..TimelineDecision::default() };
        let timeline = Timeline {
            samples: vec![sample(4.0, 40), sample(f64::NAN, 7), sample(2.0, 20)],
            epochs: vec![epoch(3.0, Some(0.5)), epoch(f64::NAN, None), epoch(5.0, Some(1.0))],
            decisions: vec![decided(3.0, 30), decided(1.5, 90), decided(f64::NAN, 99)],
            ..Timeline::default()
        };
        let scene = TimelineScene::from_timeline(&timeline);
        assert_eq!(scene.end_s, 8.0);
        assert_eq!(scene.samples, [sample(2.0, 20), sample(4.0, 40)]);
        let spans: Vec<_> = scene.epochs.iter().map(|span| (span.from_s, span.to_s)).collect();
        assert_eq!(spans, [(0.0, 3.0), (3.0, 3.0), (3.0, 8.0)]);
        let times: Vec<_> = scene.decisions.iter().map(|(t_s, _)| *t_s).collect();
        assert_eq!(times, [3.0, 1.5, 0.0]);
        assert_eq!(scene.cost_so_far(), [(0.0, 0.0), (3.0, 0.5), (3.0, 0.5), (8.0, 1.5)]);
        assert_eq!(scene.waited(), None);
        assert_eq!(TimelineScene::from_timeline(&Timeline::default()).end_s, 1.0);
    }

    #[test]
    fn the_wait_is_that_of_the_batches() {
        let sample = |t_s, batches, batch_time_s, stall_s| TimelineSample {
            batch_time_s: Some(batch_time_s),
            stall_s: Some(stall_s),
            ..sample(t_s, batches)
        };
        let timeline = Timeline {
            samples: vec![sample(1.0, 10, 0.2, 0.1), sample(2.0, 40, 0.1, 0.0)],
            ..Timeline::default()
        };
        assert_eq!(TimelineScene::from_timeline(&timeline).waited(), Some((1.0, 5.0)));
    }
}

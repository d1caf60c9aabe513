//! Measurements that jobs made of their workers, kept for later jobs of the same pipeline on the same workers.

use serde::{Deserialize, Serialize};

/// A number that several jobs measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredValue {
    pub count: u32,
    pub mean: f64,
    /// Sum of the squared deviations from the mean.
    pub m2: f64,
}

impl MeasuredValue {
    /// One measurement.
    pub fn one(value: f64) -> Self {
        Self { count: 1, mean: value, m2: 0.0 }
    }

    /// Both together (Chan, Golub and LeVeque).
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let count = self.count.saturating_add(other.count);
        let share = f64::from(other.count) / f64::from(count.max(1));
        let apart = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + apart * share,
            m2: self.m2 + other.m2 + apart * apart * f64::from(self.count) * share,
        }
    }
}

/// The throughput law of a pipeline's workers, and the count that it led to. Times are in seconds for a batch. Unknown
/// fields are ignored, so that versions can share an item.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkerMetrics {
    /// The trainer's own step.
    pub step_s: MeasuredValue,
    /// Computing of one worker that is alone, and the share by which each further one slows it.
    pub compute_s: MeasuredValue,
    pub slowing: MeasuredValue,
    /// Time at what workers share, below its bound.
    pub shared_s: MeasuredValue,
    /// Batches per second that it allows; none was reached if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<MeasuredValue>,
    /// Workers at which the policy converged.
    pub workers: MeasuredValue,
    /// Local workers beside them, if they were placed, and no other count was worth a trial any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<MeasuredValue>,
}

impl WorkerMetrics {
    /// These, and what another job measured after them.
    #[must_use]
    pub fn merge(&self, later: &Self) -> Self {
        Self {
            step_s: self.step_s.merge(later.step_s),
            compute_s: self.compute_s.merge(later.compute_s),
            slowing: self.slowing.merge(later.slowing),
            shared_s: self.shared_s.merge(later.shared_s),
            bound: merged(self.bound, later.bound),
            workers: self.workers.merge(later.workers),
            local: merged(self.local, later.local),
        }
    }
}

fn merged(known: Option<MeasuredValue>, later: Option<MeasuredValue>) -> Option<MeasuredValue> {
    match (known, later) {
        (Some(known), Some(later)) => Some(known.merge(later)),
        (known, later) => later.or(known),
    }
}

/// Whether a job's scaling rests on what earlier jobs measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricsOrigin {
    Stored,
    #[default]
    Measured,
}

impl MetricsOrigin {
    pub(crate) fn is_measured(&self) -> bool {
        *self == Self::Measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_in_any_order_gives_the_mean_and_the_deviation_of_all() {
        let values = [1.0, 2.5, 4.0, 0.5];
        let one_by_one = |values: &[f64]| {
            let measured = values.iter().copied().map(MeasuredValue::one);
            measured.fold(MeasuredValue::default(), MeasuredValue::merge)
        };
        let all = one_by_one(&values);
        let halves = one_by_one(&values[..1]).merge(one_by_one(&values[1..]));
        for merged in [all, halves] {
            assert_eq!((merged.count, merged.mean), (4, 2.0));
            assert!((merged.m2 - 7.5).abs() < 1e-12, "{merged:?}");
        }
    }

    #[test]
    fn an_item_is_small() {
        let value = MeasuredValue { count: u32::MAX, mean: 1.0 / 3.0, m2: 1e-300 / 3.0 };
        let metrics = WorkerMetrics {
            step_s: value,
            compute_s: value,
            slowing: value,
            shared_s: value,
            bound: Some(value),
            workers: value,
            local: Some(value),
        };
        assert!(serde_json::to_vec(&metrics).unwrap().len() <= 700);
    }
}

//! tf.data service's own estimator (`auto_scaler.cc`): N = max(1, ceil(sum of consumption rates / mean
//! worker throughput)), outliers replaced, growth bounded.

use crate::scaling::{ScalerFacts, ScalingPolicy, Settings, TrainingReport, WorkerMetrics};
use serde::{Deserialize, Serialize};

/// Rates further than this many standard deviations from the mean are replaced by the median.
const OUTLIER_SIGMAS: f64 = 1.0;
/// Bounds on growth: four times as many, 500 more, 100,000.
const GROWTH: u32 = 4;
const MORE: u32 = 500;
const MOST: u32 = 100_000;

/// State of the estimator: its last count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TfData {
    pub target: u32,
}

impl Default for TfData {
    fn default() -> Self {
        Self { target: 1 }
    }
}

impl ScalingPolicy for TfData {
    fn begin(_: &Settings, _: Option<&WorkerMetrics>) -> Self {
        Self::default()
    }

    fn target(&self) -> u32 {
        self.target
    }

    /// A client consumes one batch per step.
    fn next_target(&mut self, report: &TrainingReport, facts: &ScalerFacts, most: u32) -> u32 {
        if let (Some(worker_s), true) = (report.remote_batch_s(), report.is_plausible()) {
            let consumers = vec![1.0 / report.step_s; facts.clients.clamp(1, 1_024) as usize];
            let estimate = estimate_workers(&consumers, &[1.0 / worker_s]);
            let bound = self.target.saturating_mul(GROWTH).min(self.target + MORE).min(MOST);
            self.target = estimate.min(bound);
        }
        self.target = self.target.clamp(1, most);
        self.target
    }
}

/// Workers for the given consumption rates and worker throughputs (batches/s each).
pub fn estimate_workers(consumption: &[f64], throughput: &[f64]) -> u32 {
    let desired: f64 = without_outliers(consumption).iter().sum();
    let workers = without_outliers(throughput);
    let mean = workers.iter().sum::<f64>() / workers.len().max(1) as f64;
    // The cast saturates; without a known throughput the result is 1.
    (desired / mean).ceil().max(1.0) as u32
}

fn without_outliers(rates: &[f64]) -> Vec<f64> {
    let count = rates.len().max(1) as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let sigma = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count).sqrt();
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The upper of two medians.
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    let replace =
        |rate: f64| if (rate - mean).abs() > OUTLIER_SIGMAS * sigma { median } else { rate };
    rates.iter().map(|&rate| replace(rate)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumption_over_throughput() {
        assert_eq!(estimate_workers(&[10.0], &[2.0]), 5);
        assert_eq!(estimate_workers(&[10.0, 10.0], &[2.0, 3.0]), 8);
        assert_eq!(estimate_workers(&[0.1], &[2.0]), 1);
        assert_eq!(estimate_workers(&[5.0], &[]), 1, "no worker is known");
    }

    #[test]
    fn outliers_become_the_upper_median() {
        // Mean 3.25, sigma 3.9: 10 becomes the upper median of 1, 1, 1, 10.
        assert_eq!(without_outliers(&[1.0, 1.0, 1.0, 10.0]), [1.0; 4]);
        assert_eq!(without_outliers(&[1.0, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn growth_is_bounded() {
        let report = |worker_s: f64| TrainingReport {
            step_s: 0.001,
            remote_compute_s: worker_s,
            ..TrainingReport::default()
        };
        let mut estimator = TfData::default();
        let facts = ScalerFacts::default();
        let targets: Vec<u32> =
            (0..8).map(|_| estimator.next_target(&report(9.0), &facts, 5_000)).collect();
        assert_eq!(targets, [4, 16, 64, 256, 756, 1_256, 1_756, 2_256]);
    }
}

//! The autocache decision: computes, or caches at the point at which all epochs cost the least. Cachew (4.4) compares
//! the times of a worker; they are predicted, reported, and part of the cost.

use super::{CachingProfile, Mode, ReadOverlap, ReadTime};
use crate::{
    cost::{CostBreakdown, EpochWork, SplitOrigin, Usd, quantity, ratio},
    plan::{PlannedCachePoint, PlannedJob},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Part by which caching must cost less than computing. Below it noise decides, and computing stores
/// nothing (the threshold that Cachew 4.3 uses for batch times).
pub const TIE: f64 = 0.03;

/// One option and its prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachingOption {
    /// [`Mode::Compute`], or [`Mode::Put`] of a point.
    pub mode: Mode,
    /// "compute", or "cache after `resize`".
    pub name: String,
    /// Worker seconds for the profiled part, in the mode's steady state. After the last operator: seconds
    /// of the trainer's reads, which take no worker.
    pub profiled_s: f64,
    /// Part of it spent reading the cache.
    pub read_s: f64,
    /// Delivered elements per second of one worker.
    pub elements_per_s: f64,
    /// Worker seconds of an epoch in its steady state.
    pub epoch_s: f64,
    /// Bytes it stores.
    pub stored_bytes: f64,
    /// Cost of an epoch in its steady state, without storage.
    pub epoch_usd: Usd,
    /// Cost of all epochs of the job, the first computed and stored, and of the storage.
    pub total_usd: Usd,
    /// Reason why it may not be chosen.
    pub refused: Option<String>,
}

/// A decision, its reason and the alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachingDecision {
    /// [`Mode::Compute`], or [`Mode::Put`] of a point.
    pub mode: Mode,
    pub reason: String,
    /// Computing first, then the points in order.
    pub options: Vec<CachingOption>,
}

impl fmt::Display for CachingDecision {
    /// The decision, then a line for each option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.mode, self.reason)?;
        for option in &self.options {
            let CachingOption { name, epoch_s, total_usd, refused, .. } = option;
            let refused = refused.as_deref().map_or(String::new(), |why| format!("  ({why})"));
            writeln!(f, "  {name:<32} {epoch_s:>10.1} s  {total_usd:>10}{refused}")?;
        }
        Ok(())
    }
}

/// Decides the mode of the epochs of `job` after a profile. Computes if nothing was measured or no point may be
/// cached.
pub fn decide(profile: &CachingProfile, job: &PlannedJob, read_time: &ReadTime) -> CachingDecision {
    let compute = compute_option(profile, job);
    let points = (0..).zip(&job.points);
    let caches =
        points.map(|(i, point)| cache_option(profile, job, (i, point), read_time, &compute));
    let options: Vec<CachingOption> = [compute.clone()].into_iter().chain(caches).collect();
    let allowed = || options.iter().skip(1).filter(|option| option.refused.is_none());
    let best = allowed().map(|o| o.total_usd.0).min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
    // The last of those within noise leaves the least to compute, and after the last operator no
    // worker is needed at all.
    let last = allowed().rfind(|option| option.total_usd.0 <= best * (1.0 + TIE));
    let pays = |best: &&CachingOption| best.total_usd.0 < compute.total_usd.0 * (1.0 - TIE);
    let chosen = last.filter(pays).unwrap_or(&compute);
    let reason = reason(chosen, &compute, &options[1..], job.epochs);
    CachingDecision { mode: chosen.mode, reason, options }
}

/// Cost of an epoch of `work`, whose worker also waits for `waited_s` of reads in the profiled part.
fn epoch_cost(
    profile: &CachingProfile,
    job: &PlannedJob,
    work: EpochWork,
    waited_s: f64,
) -> CostBreakdown {
    let mut work = EpochWork { held_bytes: 0.0, ..work };
    work.split.wait_s += ratio(waited_s * epochs_of_profile(profile, job), work.splits as f64);
    work.cost(0.0, &job.shape, &job.prices)
}

fn computed_cost(profile: &CachingProfile, job: &PlannedJob) -> CostBreakdown {
    let work = job.epoch_work(&profile.measured);
    epoch_cost(profile, job, work, quantity(profile.source_wait_s))
}

/// Delivered elements per second; 0 if none were measured.
fn rate(profile: &CachingProfile, seconds: f64) -> f64 {
    ratio(quantity(profile.measured.rows), seconds)
}

/// Ratio of an epoch to the profiled part.
fn epochs_of_profile(profile: &CachingProfile, job: &PlannedJob) -> f64 {
    ratio(job.records as f64, quantity(profile.measured.records))
}

fn compute_option(profile: &CachingProfile, job: &PlannedJob) -> CachingOption {
    let profiled_s = profile.compute_s();
    let epoch_usd = computed_cost(profile, job).preprocessing();
    CachingOption {
        mode: Mode::Compute,
        name: "compute".into(),
        profiled_s,
        read_s: 0.0,
        elements_per_s: rate(profile, profiled_s),
        epoch_s: profiled_s * epochs_of_profile(profile, job),
        stored_bytes: 0.0,
        epoch_usd,
        total_usd: epoch_usd * f64::from(job.epochs),
        refused: None,
    }
}

fn cache_option(
    profile: &CachingProfile,
    job: &PlannedJob,
    (index, point): (u32, &PlannedCachePoint),
    read_time: &ReadTime,
    compute: &CachingOption,
) -> CachingOption {
    let (measured, objects) = (&profile.measured, quantity(profile.objects));
    let bytes = measured.ops.get(point.after_op).map_or(0.0, |op| quantity(op.bytes));
    let read_s = objects * read_time.seconds(ratio(bytes, objects));
    let after_s = profile.after_s(point);
    let profiled_s = match profile.reads {
        ReadOverlap::InTurn => read_s + after_s,
        ReadOverlap::Ahead => read_s.max(after_s),
    };
    let work = job.epoch_reading(measured, point);
    let waited_s = if work.origin == SplitOrigin::Cache { 0.0 } else { profiled_s - after_s };
    let read = epoch_cost(profile, job, work, waited_s);
    let total = job.with_cache(measured, point, computed_cost(profile, job), read);
    let refused = if let Some(why) = point.refused(measured) {
        Some(why.to_owned())
    } else if objects <= 0.0 || bytes <= 0.0 || compute.profiled_s <= 0.0 {
        Some("nothing was measured there".to_owned())
    } else {
        None
    };
    CachingOption {
        mode: Mode::Put { point: index },
        name: point.name(measured),
        profiled_s,
        read_s,
        elements_per_s: rate(profile, profiled_s),
        epoch_s: profiled_s * epochs_of_profile(profile, job),
        stored_bytes: job.stored_bytes(measured, point),
        epoch_usd: read.preprocessing(),
        total_usd: total.preprocessing(),
        refused,
    }
}

fn reason(
    chosen: &CachingOption,
    compute: &CachingOption,
    caches: &[CachingOption],
    epochs: u32,
) -> String {
    let per_thousand =
        |option: &CachingOption| format!("{:.3} s", 1e3 * ratio(1.0, option.elements_per_s));
    if caches.is_empty() {
        return "the pipeline has no autocache point".into();
    }
    let cached = if chosen.mode == Mode::Compute {
        let allowed = caches.iter().filter(|option| option.refused.is_none());
        allowed.min_by(|a, b| a.total_usd.0.total_cmp(&b.total_usd.0))
    } else {
        Some(chosen)
    };
    let Some(cached) = cached else {
        let why = caches.iter().find_map(|option| option.refused.clone()).unwrap_or_default();
        return format!("no autocache point may be used: {why}");
    };
    let tie = if chosen.mode == Mode::Compute && cached.total_usd < compute.total_usd {
        format!(", within {:.0} %: a tie, and computing stores nothing", 1e2 * TIE)
    } else {
        String::new()
    };
    format!(
        "{epochs} epochs cost {} computed, {} with a {}; a worker takes {} and {} for 1,000 elements{tie}",
        compute.total_usd,
        cached.total_usd,
        cached.name,
        per_thousand(compute),
        per_thousand(cached),
    )
}

#[cfg(test)]
mod tests;

//! The autocache decision (Cachew 4.4): computes, or caches at the point that takes a worker the least
//! time. The cost is predicted and reported too.

use super::{CachingProfile, Mode, PointProfile, ReadOverlap, ReadTime};
use crate::cost::{BilledRequests, FunctionShape, PriceList, Usd, quantity, ratio};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Part by which caching must be better than computing. Below it noise decides, and computing stores
/// nothing (the threshold that Cachew 4.3 uses for batch times).
pub const TIE: f64 = 0.03;

/// Settings by the user, and assumptions about the future.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachingSettings {
    /// See [`TIE`].
    pub tie: f64,
    /// Epochs to be computed or read, including the profiled one and those of later jobs.
    pub epochs: f64,
    /// Days for which stored data is kept.
    pub kept_days: f64,
    pub shape: FunctionShape,
    pub prices: PriceList,
}

impl Default for CachingSettings {
    fn default() -> Self {
        CachingSettings {
            tie: TIE,
            epochs: 10.0,
            // A working week: time for a second job over the same data.
            kept_days: 7.0,
            shape: FunctionShape::default(),
            prices: PriceList::default(),
        }
    }
}

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
    /// Cost of all [`CachingSettings::epochs`], the first computed and stored, and of the storage.
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

/// Decides the mode of the epochs after a profile. Computes if nothing was measured or no point may be
/// cached.
pub fn decide(
    profile: &CachingProfile,
    read_time: &ReadTime,
    settings: &CachingSettings,
) -> CachingDecision {
    let compute = compute_option(profile, settings);
    let points = (0..).zip(&profile.points);
    let caches =
        points.map(|(i, point)| cache_option(profile, i, point, read_time, settings, &compute));
    let options: Vec<CachingOption> = [compute.clone()].into_iter().chain(caches).collect();
    let tie = quantity(settings.tie).min(1.0);
    let allowed = || options.iter().skip(1).filter(|option| option.refused.is_none());
    let best_s = allowed().map(|o| o.profiled_s).min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
    // The last of those within noise leaves the least to compute, and after the last operator no
    // worker is needed at all.
    let last = allowed().rfind(|option| option.profiled_s <= best_s * (1.0 + tie));
    let pays = |best: &&CachingOption| best.profiled_s < compute.profiled_s * (1.0 - tie);
    let chosen = last.filter(pays).unwrap_or(&compute);
    let reason = reason(profile, chosen, &compute, &options[1..], settings);
    CachingDecision { mode: chosen.mode, reason, options }
}

fn epoch_usd(
    settings: &CachingSettings,
    epoch_s: f64,
    splits: f64,
    requests: BilledRequests,
) -> Usd {
    let CachingSettings { shape, prices, .. } = settings;
    shape.usd_per_second(prices) * epoch_s + requests.usd(prices) * splits
}

/// Delivered elements per second; 0 if none were measured.
fn rate(profile: &CachingProfile, seconds: f64) -> f64 {
    ratio(profile.ops.last().map_or(0.0, |op| quantity(op.elements)), seconds)
}

/// Ratio of an epoch to the profiled part.
fn epochs_of_profile(profile: &CachingProfile) -> f64 {
    ratio(quantity(profile.epoch_records), quantity(profile.records))
}

/// Profiled splits; each makes one object at any point.
fn splits(profile: &CachingProfile) -> f64 {
    profile.points.iter().map(|point| quantity(point.objects)).fold(0.0, f64::max)
}

fn compute_option(profile: &CachingProfile, settings: &CachingSettings) -> CachingOption {
    let profiled_s = profile.compute_s();
    let scale = epochs_of_profile(profile);
    let epoch_s = profiled_s * scale;
    let epoch_usd = epoch_usd(settings, epoch_s, splits(profile) * scale, BilledRequests::SPLIT);
    CachingOption {
        mode: Mode::Compute,
        name: "compute".into(),
        profiled_s,
        read_s: 0.0,
        elements_per_s: rate(profile, profiled_s),
        epoch_s,
        stored_bytes: 0.0,
        epoch_usd,
        total_usd: epoch_usd * quantity(settings.epochs),
        refused: None,
    }
}

fn cache_option(
    profile: &CachingProfile,
    index: u32,
    point: &PointProfile,
    read_time: &ReadTime,
    settings: &CachingSettings,
    compute: &CachingOption,
) -> CachingOption {
    let objects = quantity(point.objects);
    let (op, bytes) = match profile.ops.get(point.after_op) {
        Some(op) => (op.op.as_str(), quantity(op.bytes)),
        None => ("", 0.0),
    };
    let last = profile.is_last(point);
    let read_s = objects * read_time.seconds(ratio(bytes, objects));
    let after_s = profile.after_s(point);
    let profiled_s = match profile.reads {
        ReadOverlap::InTurn => read_s + after_s,
        ReadOverlap::Ahead => read_s.max(after_s),
    };
    let scale = epochs_of_profile(profile);
    let (stored_bytes, epoch_s) = (bytes * scale, profiled_s * scale);
    let splits = objects * scale;
    // After the last operator only the trainer reads, and delivery stores the objects anyway.
    let steady_usd = if last {
        BilledRequests::CACHED_SPLIT.usd(&settings.prices) * splits
    } else {
        epoch_usd(settings, epoch_s, splits, BilledRequests::SPLIT)
    };
    let put = BilledRequests { puts: if last { 0.0 } else { 1.0 }, ..BilledRequests::default() };
    let first_usd = compute.epoch_usd + put.usd(&settings.prices) * splits;
    let kept_s = quantity(settings.kept_days) * crate::cost::DAY_S;
    let later_epochs = (quantity(settings.epochs) - 1.0).max(0.0);
    let total_usd =
        first_usd + steady_usd * later_epochs + settings.prices.stored(stored_bytes, kept_s);
    let refused = if point.random && !point.reuse_random {
        Some("random: every epoch would repeat the draws; `reuse_random: true` allows it".into())
    } else if objects <= 0.0 || bytes <= 0.0 || compute.profiled_s <= 0.0 {
        Some("nothing was measured there".into())
    } else {
        None
    };
    CachingOption {
        mode: Mode::Put { point: index },
        name: format!("cache after `{op}`"),
        profiled_s,
        read_s,
        elements_per_s: rate(profile, profiled_s),
        epoch_s,
        stored_bytes,
        epoch_usd: steady_usd,
        total_usd,
        refused,
    }
}

fn reason(
    profile: &CachingProfile,
    chosen: &CachingOption,
    compute: &CachingOption,
    caches: &[CachingOption],
    settings: &CachingSettings,
) -> String {
    let per_thousand =
        |option: &CachingOption| format!("{:.3} s", 1e3 * ratio(1.0, option.elements_per_s));
    let epochs = settings.epochs;
    if chosen.mode != Mode::Compute {
        let CachingOption { name, total_usd, .. } = chosen;
        return format!(
            "{name} takes a worker {} for 1,000 elements, computing {}; {epochs} epochs cost {total_usd}, \
             computed {}",
            per_thousand(chosen),
            per_thousand(compute),
            compute.total_usd,
        );
    }
    if profile.points.is_empty() {
        return "the pipeline has no autocache point".into();
    }
    let allowed = caches.iter().filter(|option| option.refused.is_none());
    let best = allowed.min_by(|a, b| a.profiled_s.total_cmp(&b.profiled_s));
    let Some(best) = best else {
        let why = caches.iter().find_map(|option| option.refused.clone()).unwrap_or_default();
        return format!("no autocache point may be used: {why}");
    };
    let tie = if best.profiled_s < compute.profiled_s {
        format!(", within {:.0} %: a tie, and computing stores nothing", 1e2 * settings.tie)
    } else {
        String::new()
    };
    format!(
        "computing takes a worker {} for 1,000 elements, to {} {}; {epochs} epochs cost {}, cached {}{tie}",
        per_thousand(compute),
        best.name,
        per_thousand(best),
        compute.total_usd,
        best.total_usd,
    )
}

#[cfg(test)]
mod tests;

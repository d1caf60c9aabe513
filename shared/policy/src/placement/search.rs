//! The placement at which a job costs least: every combination of order, cut, cache point, codec, memory, region and
//! local workers is priced.

use super::{PackedBytes, PlacedEpoch, PlacedHost, PlacementTerms, model::WorkerPart, place_epoch};
use crate::cost::{CostBreakdown, EpochBound, FunctionShape, PriceList, TransferPrices};
use crate::plan::{MeasuredSample, PlanLimits, PlannedCachePoint, PlannedJob};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Memory of functions that are priced, in MB, beside the one that is deployed.
const MEMORY_MB: [u32; 4] = [512, 884, 1769, 3538];
/// Most that the trainer may wait or its step become longer, as a share, where that is possible.
pub(super) const SLOWER: f64 = 0.03;
/// Placements within this share of the least dollars are equal: the simplest of them is taken.
pub(super) const EQUAL: f64 = 0.01;
/// Least share of the dollars that a cut has to save.
const CUT_GAIN: f64 = 0.05;
/// Every count of local workers up to this one is priced, then every fourth more.
const EVERY: u32 = 8;

/// An order of the operators, as it was measured.
#[derive(Debug, Clone)]
pub struct PlacedOrder {
    /// "author" or "AutoOrder".
    pub name: &'static str,
    pub measured: MeasuredSample,
    pub points: Vec<PlannedCachePoint>,
    /// Compression of what it delivers, if that was measured.
    pub packed: Option<PackedBytes>,
}

/// A job to place. Its shape is what is deployed.
#[derive(Debug, Clone)]
pub struct PlacementInput {
    pub orders: Vec<PlacedOrder>,
    pub job: PlannedJob,
    pub limits: PlanLimits,
    pub host: PlacedHost,
}

/// The place of remote workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerRegion {
    /// With the trainer: the source crosses.
    Trainer,
    /// With the data: batches cross.
    Data,
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Combination {
    order: usize,
    /// The operator after which elements leave the worker; the last one if there is none.
    cut: Option<usize>,
    cache: Option<usize>,
    is_packed: bool,
    memory_mb: u32,
    region: WorkerRegion,
    local: u32,
}

/// A combination with its price.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    at: Combination,
    /// The epoch that repeats: of a cache, one that reads it.
    epoch: PlacedEpoch,
    /// Mean of an epoch over the job.
    cost: CostBreakdown,
}

impl Candidate {
    fn usd(&self) -> f64 {
        self.cost.total().0
    }
}

/// The best placement with another value in one dimension.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementAlternative {
    pub dimension: &'static str,
    pub value: String,
    pub remote: u32,
    pub local: u32,
    pub batch_time_s: f64,
    /// Mean of an epoch over the job.
    pub usd: f64,
}

/// A placement with its reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacementPlan {
    pub order: String,
    pub cut: String,
    pub cache: Option<String>,
    pub codec: String,
    pub memory_mb: u32,
    pub region: WorkerRegion,
    pub local: u32,
    pub remote: u32,
    pub share_local: f64,
    pub batch_time_s: f64,
    pub stall: f64,
    /// Mean of an epoch over the job.
    pub usd: CostBreakdown,
    pub bound: EpochBound,
    /// Plain sentences.
    pub reasons: Vec<String>,
    /// The next best for each dimension.
    pub alternatives: Vec<PlacementAlternative>,
    /// Combinations that were priced.
    pub combinations: usize,
}

/// Finds the placement that costs least among those that hardly slow the trainer; the fastest if none does not.
pub fn search(input: &PlacementInput) -> PlacementPlan {
    let all = candidates(input);
    let combinations = all.len();
    let (cut, whole): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.at.cut.is_some());
    let chosen = best(input, &whole);
    let others = DIMENSIONS.iter().filter_map(|dimension| {
        let other = |one: &&Candidate| {
            (dimension.value)(input, &one.at) != (dimension.value)(input, &chosen.at)
        };
        let others: Vec<Candidate> = whole.iter().filter(other).copied().collect();
        (!others.is_empty()).then(|| (dimension, best(input, &others)))
    });
    let others: Vec<(&Dimension, Candidate)> = others.collect();
    let mut reasons = reasons(input, &chosen, &others);
    reasons.push(cut_reason(input, &whole, &cut));
    let Candidate { at, epoch, cost } = chosen;
    let value = |name: &str| {
        let found = DIMENSIONS.iter().find(|dimension| dimension.name == name);
        found.map_or_else(String::new, |dimension| (dimension.value)(input, &at))
    };
    PlacementPlan {
        order: value("order"),
        cut: "after batch".to_owned(),
        cache: at.cache.map(|_| value("cache")),
        codec: value("codec"),
        memory_mb: at.memory_mb,
        region: at.region,
        local: epoch.local,
        remote: epoch.remote,
        share_local: epoch.share_local,
        batch_time_s: epoch.batch_time_s,
        stall: epoch.stall,
        usd: cost,
        bound: epoch.bound,
        reasons,
        alternatives: others
            .iter()
            .map(|(dimension, other)| alternative(input, dimension, other))
            .collect(),
        combinations,
    }
}

/// A dimension in which placements differ, and the words for its value.
struct Dimension {
    name: &'static str,
    value: fn(&PlacementInput, &Combination) -> String,
}

const DIMENSIONS: [Dimension; 6] = [
    Dimension { name: "order", value: |input, at| input.orders[at.order].name.to_owned() },
    Dimension {
        name: "cache",
        value: |input, at| {
            let PlacedOrder { measured, points, .. } = &input.orders[at.order];
            at.cache.map_or("no cache".to_owned(), |point| points[point].name(measured))
        },
    },
    Dimension {
        name: "codec",
        value: |_, at| if at.is_packed { "zstd-1" } else { "stored" }.to_owned(),
    },
    Dimension { name: "memory", value: |_, at| format!("{} MB", at.memory_mb) },
    Dimension {
        name: "region",
        value: |_, at| match at.region {
            WorkerRegion::Trainer => "workers with the trainer".to_owned(),
            WorkerRegion::Data => "workers with the data".to_owned(),
        },
    },
    Dimension {
        name: "local",
        value: |_, at| if at.local == 0 { "no local worker" } else { "local workers" }.to_owned(),
    },
];

fn alternative(
    input: &PlacementInput,
    dimension: &Dimension,
    other: &Candidate,
) -> PlacementAlternative {
    PlacementAlternative {
        dimension: dimension.name,
        value: (dimension.value)(input, &other.at),
        remote: other.epoch.remote,
        local: other.epoch.local,
        batch_time_s: other.epoch.batch_time_s,
        usd: other.usd(),
    }
}

/// Those that hardly slow the trainer; the fastest, if none does not. There is at least one.
fn fast<'c>(input: &PlacementInput, all: &'c [Candidate]) -> Vec<&'c Candidate> {
    let fastest_s = all.iter().map(|one| one.epoch.batch_time_s).fold(f64::INFINITY, f64::min);
    let most_s = fastest_s.max(input.job.step_s) * (1.0 + SLOWER);
    all.iter().filter(|one| one.epoch.batch_time_s <= most_s).collect()
}

/// The least dollars of a fast one.
fn least_usd(input: &PlacementInput, all: &[Candidate]) -> f64 {
    fast(input, all).into_iter().map(Candidate::usd).fold(f64::INFINITY, f64::min)
}

/// The simplest of the fast ones that cost least.
fn best(input: &PlacementInput, all: &[Candidate]) -> Candidate {
    let (fast, least_usd) = (fast(input, all), least_usd(input, all));
    let equal = fast.iter().filter(|one| one.usd() <= least_usd * (1.0 + EQUAL));
    let order = |one: &&&Candidate| {
        let Combination { cut, cache, is_packed, memory_mb, local, .. } = one.at;
        let is_other = memory_mb != input.job.shape.memory_mb;
        (cut.is_some(), cache.is_some(), is_other, is_packed, local)
    };
    let simplest = equal.min_by(|a, b| order(a).cmp(&order(b)).then(a.usd().total_cmp(&b.usd())));
    **simplest.unwrap_or(&fast[0])
}

/// Every combination with its price.
fn candidates(input: &PlacementInput) -> Vec<Candidate> {
    let PlacementInput { orders, job, host, .. } = input;
    let TransferPrices { source_usd_per_gb, delivery_usd_per_gb } = job.prices.transfer;
    let crossing = source_usd_per_gb + delivery_usd_per_gb;
    let transfer = |region| match region {
        WorkerRegion::Trainer => {
            TransferPrices { source_usd_per_gb: crossing, delivery_usd_per_gb: 0.0 }
        }
        WorkerRegion::Data => {
            TransferPrices { source_usd_per_gb: 0.0, delivery_usd_per_gb: crossing }
        }
    };
    let regions: &[WorkerRegion] = if crossing > 0.0 {
        &[WorkerRegion::Trainer, WorkerRegion::Data]
    } else {
        &[WorkerRegion::Trainer]
    };
    let mut memories = MEMORY_MB.to_vec();
    memories.push(job.shape.memory_mb);
    memories.sort_unstable();
    memories.dedup();
    let mut all = Vec::new();
    for (order, placed) in orders.iter().enumerate() {
        for &region in regions {
            let prices = PriceList { transfer: transfer(region), ..job.prices.clone() };
            let job = PlannedJob { prices, points: placed.points.clone(), ..job.clone() };
            let pricing = OrderPricing { input, placed, job: &job };
            for part in parts(placed) {
                for &memory_mb in &memories {
                    for local in local_counts(host) {
                        let (cut, cache, is_packed) = part;
                        let at =
                            Combination { order, cut, cache, is_packed, memory_mb, region, local };
                        all.extend(pricing.price(at));
                    }
                }
            }
        }
    }
    all
}

/// Cuts, cache points and codecs of an order, as allowed.
fn parts(placed: &PlacedOrder) -> Vec<(Option<usize>, Option<usize>, bool)> {
    let PlacedOrder { measured, points, packed, .. } = placed;
    let usable = |point: &usize| points[*point].refused(measured).is_none();
    let caches = (0..points.len()).filter(usable).map(Some);
    let mut all = Vec::new();
    for cache in std::iter::once(None).chain(caches) {
        all.push((None, cache, false));
        if packed.is_some() {
            all.push((None, cache, true));
        }
        let after = cache.map_or(0, |point| points[point].after_op);
        all.extend(
            edges(measured).filter(|edge| *edge > after).map(|edge| (Some(edge), cache, false)),
        );
    }
    all
}

/// Operators after which elements may leave a worker: every one between them and the batches gives as many elements as
/// it takes.
fn edges(measured: &MeasuredSample) -> impl Iterator<Item = usize> + '_ {
    let ops = &measured.ops;
    let keeps = |edge: usize| ops[edge + 1..].iter().all(|op| op.elements == ops[edge].elements);
    // Without bytes it runs together with the next.
    let is_edge =
        move |edge: &usize| !ops[*edge].is_point && ops[*edge].bytes > 0.0 && keeps(*edge);
    (1..ops.len().saturating_sub(2)).filter(is_edge)
}

/// Counts of local workers that fit the idle processors.
pub(super) fn local_counts(host: &PlacedHost) -> Vec<u32> {
    let most = host.idle().floor().min(1e4) as u32;
    let mut counts = vec![0];
    while let Some(&last) = counts.last().filter(|last| **last < most) {
        let next = if last < EVERY { last + 1 } else { last + last / 4 };
        counts.push(next.min(most));
    }
    counts
}

/// An order's measurements, and the job in one region.
struct OrderPricing<'p> {
    input: &'p PlacementInput,
    placed: &'p PlacedOrder,
    job: &'p PlannedJob,
}

impl OrderPricing<'_> {
    /// `None` if the host has no processors for the operators after the cut, and to decode what comes from workers.
    fn price(&self, at: Combination) -> Option<Candidate> {
        let Self { input, placed, job } = self;
        let mut shape = FunctionShape { memory_mb: at.memory_mb, ..job.shape };
        if at.local > 0 {
            shape.architecture = input.host.architecture;
        }
        let terms = PlacementTerms {
            shape,
            trainer: job.trainer(),
            host: input.host,
            limits: &input.limits,
            prices: &job.prices,
        };
        let measured = &placed.measured;
        let end = at.cut.map_or(measured.ops.len(), |edge| edge + 1);
        let packed = placed.packed.as_ref().filter(|_| at.is_packed);
        if at.cut.is_some() {
            let whole = WorkerPart { ops: 0..end, packed }.work(measured, job).1;
            if whole.remote_s > input.host.idle() * job.step_s {
                return None;
            }
        }
        let part = |start: usize| {
            let (work, host_work) = WorkerPart { ops: start..end, packed }.work(measured, job);
            place_epoch(&work, &host_work, at.local, &terms)
        };
        let computed = part(0);
        let Some(point) = at.cache.map(|point| &placed.points[point]) else {
            return Some(Candidate { at, epoch: computed, cost: computed.cost });
        };
        let read = if point.is_last(measured) {
            let (_, host_work) = WorkerPart { ops: 0..end, packed: None }.work(measured, job);
            place_epoch(&job.epoch_reading(measured, point), &host_work, 0, &terms)
        } else {
            part(point.after_op + 1)
        };
        let total = job.with_cache(measured, point, computed.cost, read.cost);
        let cost = total * (1.0 / f64::from(job.epochs.max(1)));
        Some(Candidate { at, epoch: read, cost })
    }
}

/// A sentence for each dimension.
fn reasons(
    input: &PlacementInput,
    chosen: &Candidate,
    others: &[(&Dimension, Candidate)],
) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for (dimension, other) in others {
        let (here, there) =
            ((dimension.value)(input, &chosen.at), (dimension.value)(input, &other.at));
        let (usd, other_usd) = (chosen.cost.total(), other.cost.total());
        let slower = other.epoch.batch_time_s / chosen.epoch.batch_time_s - 1.0;
        said.push(if slower > SLOWER {
            format!(
                "{}: {here}; with {there} a batch takes {:.0} % longer",
                dimension.name,
                1e2 * slower
            )
        } else {
            format!("{}: {here} for {usd} an epoch; {there} {other_usd}", dimension.name)
        });
    }
    if input.host.idle() < 1.0 {
        said.push("local: the trainer's host has no idle processor (`--spare-cores`)".to_owned());
    }
    for order in &input.orders {
        for point in &order.points {
            let why = point.refused(&order.measured);
            said.extend(
                why.map(|why| format!("cache: not {}: {why}", point.name(&order.measured))),
            );
        }
    }
    said.dedup();
    said
}

/// The gain of the best cut before `batch`, as a share of the dollars of an epoch. None is built; it would be from 5 % on.
fn cut_reason(input: &PlacementInput, whole: &[Candidate], cut: &[Candidate]) -> String {
    let least_cut = fast(input, cut).into_iter().min_by(|a, b| a.usd().total_cmp(&b.usd()));
    let Some(best) = least_cut else {
        return "cut: after batch; the trainer's host has no idle processors for the operators after another".to_owned();
    };
    let gain = 1.0 - best.usd() / least_usd(input, whole);
    let name = best.at.cut.map_or("", |edge| &input.orders[best.at.order].measured.ops[edge].op);
    if gain < CUT_GAIN {
        return format!(
            "cut: after batch; no other gains {:.0} % (the best, after `{name}`, {:+.1} %)",
            1e2 * CUT_GAIN,
            1e2 * gain
        );
    }
    format!(
        "cut: after batch; after `{name}` would save {:.0} %, but workers cannot be cut there",
        1e2 * gain
    )
}

/// Sentences that are shown; `--json` has all.
const MAX_REASONS: usize = 7;

impl fmt::Display for PlacementPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, cut, cache, codec, memory_mb, local, remote, bound, usd, .. } = self;
        let cache = cache.as_deref().unwrap_or("no cache");
        write!(
            f,
            "placement: order of {order}; cut {cut}; {cache}; {codec}; {local} local + {remote} functions of \
             {memory_mb} MB: a batch in {:.1} ms, {} an epoch, bound by {bound}",
            1e3 * self.batch_time_s,
            usd.total(),
        )?;
        for why in self.reasons.iter().take(MAX_REASONS) {
            write!(f, "\n  {why}")?;
        }
        Ok(())
    }
}

//! Sizes of a stack that runs a number of workers: those that `scripts/deploy` derives, and what AWS
//! gives without asking.

use crate::cost::{EpochWork, PriceList, TransferPrices, Usd};
use gristmill_model::limits::{
    ACCOUNT_CONCURRENCY, GROWTH, GROWTH_PERIOD, NEW_TABLE_READS_PER_S, NEW_TABLE_WRITES_PER_S,
    PREFIX_PUTS_PER_S, url_requests_per_s,
};

/// Concurrency to reserve for the scaler.
pub const SCALER_CONCURRENCY: u32 = 5;
/// Least concurrency of the coordinator.
const COORDINATOR_LEAST: u32 = 20;
/// Workers whose calls need one more of it, with splits of 0.3 s.
const WORKERS_PER_COORDINATOR: u32 = 6;
/// Workers that a new table of on-demand capacity serves.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/warm-throughput.html>
const NEW_TABLE_WORKERS: u32 = 1_200;
/// Dollars a GB from AWS to the internet, in us-east-1. <https://aws.amazon.com/ec2/pricing/on-demand/>
const EGRESS_USD_PER_GB: f64 = 0.09;

/// Concurrency to reserve for the coordinator of `workers`.
pub fn coordinator_concurrency(workers: u32) -> u32 {
    workers.div_ceil(WORKERS_PER_COORDINATOR).max(COORDINATOR_LEAST)
}

/// Read units a second that the table serves at once, for `workers` with splits of 1.6 s. They read 2.4 each; keys do not
/// fall evenly onto partitions.
pub fn warm_reads_per_s(workers: u32) -> u32 {
    (workers.saturating_mul(48) / 10).max(NEW_TABLE_READS_PER_S)
}

/// Write units a second, likewise. Such workers write 1.65 each.
pub fn warm_writes_per_s(workers: u32) -> u32 {
    (workers.saturating_mul(33) / 10).max(NEW_TABLE_WRITES_PER_S)
}

/// Requests a second that `workers` with splits of 0.3 s send.
pub fn requests_per_s(workers: u32) -> u32 {
    url_requests_per_s(workers.div_ceil(WORKERS_PER_COORDINATOR))
}

/// Sentences on what `workers` need beyond what every account has.
pub(super) fn needs(workers: u32) -> Vec<String> {
    let mut said = Vec::new();
    let coordinator = coordinator_concurrency(workers);
    let account = (u64::from(workers) + u64::from(coordinator + SCALER_CONCURRENCY)) * 2;
    if account > u64::from(ACCOUNT_CONCURRENCY) {
        said.push(format!(
            "most accounts run {ACCOUNT_CONCURRENCY} functions at a time: {workers} workers need {account}, half of \
             them left to others; scripts/deploy then reserves {coordinator} for the coordinator, whose URL \
             serves {} requests a second",
            url_requests_per_s(coordinator),
        ));
    }
    if workers > GROWTH {
        let seconds = GROWTH_PERIOD.as_secs();
        said.push(format!(
            "AWS adds {GROWTH} workers in {seconds} s: all {workers} run after {} s",
            u64::from(workers.div_ceil(GROWTH) - 1) * seconds
        ));
    }
    if workers > NEW_TABLE_WORKERS {
        said.push(format!(
            "a new table serves about {NEW_TABLE_WORKERS} workers: scripts/deploy warms it for more (WarmReads, \
             WarmWrites), which AWS charges once"
        ));
    }
    said
}

/// A sentence on more objects a second than S3 takes under the prefix of one job. Each split puts one.
pub(super) fn puts(splits: u64, seconds: f64) -> Option<String> {
    let puts_per_s = splits as f64 / seconds;
    (puts_per_s.is_finite() && puts_per_s > f64::from(PREFIX_PUTS_PER_S)).then(|| {
        format!(
            "its workers put {puts_per_s:.0} objects a second under one prefix, of which S3 takes {PREFIX_PUTS_PER_S}: \
             the others wait, unless splits are larger (--split-batches)"
        )
    })
}

/// A sentence on what a trainer outside AWS pays to receive an epoch, unless `prices` have it.
pub(super) fn egress(work: &EpochWork, prices: &PriceList) -> Option<String> {
    if prices.transfer.delivery_usd_per_gb > 0.0 {
        return None;
    }
    let transfer =
        TransferPrices { delivery_usd_per_gb: EGRESS_USD_PER_GB, ..TransferPrices::default() };
    let outside = PriceList { transfer, ..prices.clone() };
    let usd = outside.transferred(0.0, work.splits as f64 * work.split.bytes_out);
    (usd > Usd(0.01)).then(|| {
        format!(
            "a trainer outside AWS also pays {usd} an epoch to receive it (${EGRESS_USD_PER_GB} a GB): train in the \
             stack's region, compress, or use smaller dtypes"
        )
    })
}

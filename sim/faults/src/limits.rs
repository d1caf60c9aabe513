//! Small limits of AWS, which some simulations keep until their faults end. That of the account's concurrency is
//! [`FaultPlan::concurrency`](crate::FaultPlan::concurrency).

use crate::{FaultKind, FaultSimulation};
use fastrand::Rng;
use gristmill_ports::{
    limits::{KeyedRates, QUERY_PAGE_BYTES, TokenBucket},
    memory::TableLimits,
};
use parking_lot::Mutex;
use std::ops::Range;

/// Requests a second of the coordinator's URL, and of one bucket.
const URL: Range<u32> = 3..40;
const PREFIX: Range<u32> = 2..40;
/// Bytes of a page of a query, so few that a window has several.
const PAGE: Range<u32> = 1_000..20_000;

/// Rates a second, and the page of a query, if limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmallRates {
    pub url: Option<u32>,
    /// The rate of a bucket: S3 divides one that is asked much, after a while.
    pub prefix: Option<u32>,
    /// Bytes of a page of a query. Other processes write between two pages.
    pub page_bytes: Option<u32>,
}

impl SmallRates {
    /// Each is limited in one simulation of four. `random` is a source of its own.
    pub fn draw(random: &mut Rng) -> Self {
        let mut one = |rates: Range<u32>| {
            let rate = random.u32(rates);
            (random.u8(0..4) == 0).then_some(rate)
        };
        Self { url: one(URL), prefix: one(PREFIX), page_bytes: one(PAGE) }
    }

    /// The limits of a table of which each partition key is written at `writes_per_s`.
    pub fn of_table(&self, writes_per_s: u32) -> TableLimits {
        let page_bytes = self.page_bytes.map_or(QUERY_PAGE_BYTES, u64::from);
        TableLimits { page_bytes, writes_per_s: Some(writes_per_s), ..TableLimits::none() }
    }
}

/// The rest of the rates.
pub struct RemainingRates {
    rates: SmallRates,
    url: Mutex<TokenBucket>,
    buckets: Mutex<KeyedRates>,
}

impl RemainingRates {
    pub fn new(rates: SmallRates) -> Self {
        let url = Mutex::new(TokenBucket::new(rates.url.unwrap_or_default()));
        let buckets = Mutex::new(KeyedRates::new(rates.prefix.unwrap_or_default()));
        Self { rates, url, buckets }
    }
}

impl FaultSimulation {
    /// Whether the coordinator's URL rejects a request now.
    pub fn is_url_crowded(&self) -> bool {
        let RemainingRates { rates, url, .. } = &self.rates;
        let is_crowded =
            rates.url.is_some() && self.is_disturbed() && !url.lock().take_one(self.time.now());
        if is_crowded {
            self.suffers(FaultKind::UrlThrottled);
        }
        is_crowded
    }

    /// Whether the store answers a request to `bucket` with 503 now.
    pub fn is_bucket_crowded(&self, bucket: &str) -> bool {
        if self.rates.rates.prefix.is_none() || !self.is_disturbed() {
            return false;
        }
        let is_served = self.rates.buckets.lock().take_one(bucket, self.time.now());
        if !is_served {
            self.suffers(FaultKind::PrefixThrottled);
        }
        !is_served
    }
}

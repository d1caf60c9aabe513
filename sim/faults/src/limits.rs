//! Small limits of AWS, which some simulations keep until their faults end. That of the account's concurrency is
//! [`FaultPlan::concurrency`](crate::FaultPlan::concurrency).

use crate::{FaultKind, FaultSimulation};
use fastrand::Rng;
use gristmill_ports::limits::TokenBucket;
use parking_lot::Mutex;
use std::{collections::BTreeMap, ops::Range};

/// Requests a second of the coordinator's URL, and of one bucket.
const URL: Range<u32> = 3..40;
const PREFIX: Range<u32> = 2..40;

/// Rates a second, if limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmallRates {
    pub url: Option<u32>,
    /// The rate of a bucket: S3 divides one that is asked much, after a while.
    pub prefix: Option<u32>,
}

impl SmallRates {
    /// Each rate is limited in one simulation of four. `random` is a source of its own.
    pub fn draw(random: &mut Rng) -> Self {
        let mut one = |rates: Range<u32>| {
            let rate = random.u32(rates);
            (random.u8(0..4) == 0).then_some(rate)
        };
        Self { url: one(URL), prefix: one(PREFIX) }
    }
}

/// The rest of the rates.
pub struct RemainingRates {
    rates: SmallRates,
    url: Mutex<TokenBucket>,
    buckets: Mutex<BTreeMap<String, TokenBucket>>,
}

impl RemainingRates {
    pub fn new(rates: SmallRates) -> Self {
        let url = Mutex::new(TokenBucket::new(rates.url.unwrap_or_default()));
        Self { rates, url, buckets: Mutex::default() }
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
        let Some(rate) = self.rates.rates.prefix.filter(|_| self.is_disturbed()) else {
            return false;
        };
        let is_served = {
            let mut buckets = self.rates.buckets.lock();
            let left = buckets.entry(bucket.to_owned()).or_insert_with(|| TokenBucket::new(rate));
            left.take_one(self.time.now())
        };
        if !is_served {
            self.suffers(FaultKind::PrefixThrottled);
        }
        !is_served
    }
}

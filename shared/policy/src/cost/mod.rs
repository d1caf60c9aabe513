//! The one cost model: what a split takes of a function's time and of the services beside it, and
//! what an epoch of them costs in seconds and dollars. Caching, planning and budgets all ask here,
//! so that two parts of the system never disagree about a price.
//!
//! Prices are data ([`Prices`]); nothing here is a measurement on AWS. Every input is taken as it
//! is if it is finite and positive and as zero otherwise, so that a profile with holes gives a
//! figure that is too low instead of one that is not a number.

mod epoch;
mod function;
mod prices;
mod split;
mod usd;

pub use epoch::{Bound, EpochEstimate, EpochWork, Trainer};
pub use function::{Architecture, FunctionShape, NETWORK_BYTES_PER_S};
pub use prices::{
    FunctionPrices, InstancePrices, ObjectPrices, PriceError, Prices, TablePrices, TransferPrices,
};
pub use split::{Requests, SplitBound, SplitWork};
pub use usd::{Cost, Usd};

#[cfg(test)]
mod tests;

/// Bytes of the gigabyte that AWS bills, of memory, storage and transfer alike.
pub const BILLED_GB_BYTES: f64 = (1u64 << 30) as f64;
/// Days of the month in "GB-month": what S3 divides by is the days of the month at hand.
pub const DAYS_PER_MONTH: f64 = 30.0;
/// Seconds of an hour.
pub const HOUR_S: f64 = 3600.0;
/// Seconds of a day.
pub const DAY_S: f64 = 24.0 * HOUR_S;

/// More than there is of anything (bytes, seconds, dollars): products of a few stay finite.
const MAX_QUANTITY: f64 = 1e18;

/// `value` if it can be a quantity, else nothing of it.
pub(crate) fn quantity(value: f64) -> f64 {
    match value.is_finite() {
        true => value.clamp(0.0, MAX_QUANTITY),
        false => 0.0,
    }
}

/// `part / whole`, and zero of nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => quantity(part / whole),
        false => 0.0,
    }
}

//! The cost model: function time and service usage of a split, and an epoch of them in seconds and
//! dollars. Caching, planning and budgets all use it, so that prices agree everywhere.
//!
//! Prices are data ([`PriceList`]); nothing here is a measurement on AWS. Inputs that are negative or not
//! finite count as zero, so that an incomplete profile gives a figure that is too low instead of one
//! that is not a number.

mod epoch;
mod function;
mod prices;
mod split;
mod usd;

pub use epoch::{EpochBound, EpochEstimate, EpochWork, TrainerDemand};
pub use function::{FunctionArchitecture, FunctionShape, NETWORK_BYTES_PER_S};
pub use prices::{
    FunctionPrices, InstancePrices, ObjectPrices, PriceError, PriceList, TablePrices,
    TransferPrices,
};
pub use split::{BilledRequests, SplitBound, SplitWork};
pub use usd::{CostBreakdown, Usd};

#[cfg(test)]
mod tests;

/// Bytes of a gigabyte as AWS bills memory, storage and transfer.
pub const BILLED_GB_BYTES: f64 = (1u64 << 30) as f64;
/// Days of the month in "GB-month". S3 uses the actual days of the month.
pub const DAYS_PER_MONTH: f64 = 30.0;
/// Seconds of an hour.
pub const HOUR_S: f64 = 3600.0;
/// Seconds of a day.
pub const DAY_S: f64 = 24.0 * HOUR_S;

/// Exceeds any real quantity (bytes, seconds, dollars); products of a few stay finite.
const MAX_QUANTITY: f64 = 1e18;

/// `value` if it is a valid quantity, else 0.
pub(crate) fn quantity(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, MAX_QUANTITY) } else { 0.0 }
}

/// `part / whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { quantity(part / whole) } else { 0.0 }
}

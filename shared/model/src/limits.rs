//! Limits of AWS for which stacks are planned and sized: each number with its source.

use std::time::Duration;

/// Requests a second that a function URL serves for each unit of its function's concurrency.
/// <https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html#urls-throttling>
pub const URL_REQUESTS_PER_CONCURRENCY: u32 = 10;

/// Environments that Lambda adds to one function in [`GROWTH_PERIOD`].
/// <https://docs.aws.amazon.com/lambda/latest/dg/scaling-behavior.html>
pub const GROWTH: u32 = 1_000;
/// See [`GROWTH`].
pub const GROWTH_PERIOD: Duration = Duration::from_secs(10);

/// Concurrency of most accounts.
/// <https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html>
pub const ACCOUNT_CONCURRENCY: u32 = 1_000;

/// PUT, COPY, POST and DELETE requests a second of one prefix of a bucket.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html>
pub const PREFIX_PUTS_PER_S: u32 = 3_500;

/// Read units a second that a new table of on-demand capacity serves.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/warm-throughput.html>
pub const NEW_TABLE_READS_PER_S: u32 = 12_000;
/// Write units a second of a new table.
pub const NEW_TABLE_WRITES_PER_S: u32 = 4_000;

/// Requests a second that a URL serves whose function has `concurrency`.
pub fn url_requests_per_s(concurrency: u32) -> u32 {
    concurrency.saturating_mul(URL_REQUESTS_PER_CONCURRENCY)
}

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

/// Memory that comes with one vCPU, in MB (AWS Lambda developer guide, "Configure function
/// memory"); more memory brings more, less memory a part of one.
pub const MB_PER_VCPU: f64 = 1769.0;

/// Splits that a worker with this much memory computes at a time, one thread each: its number of
/// vCPUs, rounded. A small fraction of a vCPU is worth less than the memory that another split
/// takes.
pub fn worker_threads(memory_mb: u32) -> u32 {
    (f64::from(memory_mb) / MB_PER_VCPU).round().max(1.0) as u32
}

#[cfg(test)]
mod function_tests {
    use super::*;

    #[test]
    fn threads_follow_the_processors_that_memory_brings() {
        for (memory_mb, threads) in
            [(512, 1), (1769, 1), (2048, 1), (3008, 2), (3538, 2), (10_240, 6)]
        {
            assert_eq!(worker_threads(memory_mb), threads);
        }
    }
}

//! The command line.

use clap::{ArgGroup, Parser};
use std::time::Duration;

/// Measure the cost of coordination by number of workers, and check it against bars.
///
/// The production coordinator, worker loop, scaler and fetcher run in virtual time over a metered table.
/// A split takes --split-s, a call of the coordinator's URL 30 ms, a call of the table 5 ms, a batch read
/// 8 ms, each plus or minus 20 %. Reads are strongly consistent and counted as by DynamoDB: a read unit
/// for 4 KB of an item, or of all items of a query; a write unit for each KB, also if the condition
/// fails. With --limits a partition rejects requests beyond 3,000 read or 1,000 write units a second (one
/// idle second is saved), and the SDK's retries follow.
///
/// With --deployed all limits of AWS apply to a stack that scripts/deploy sizes for the workers: the URL serves
/// 10 requests a second for each reserved call of the coordinator, a function gets 1,000 environments in 10 s,
/// events wait for an environment for up to 60 s, and the table has as many partitions as its warm throughput
/// needs. The scaler invokes the workers.
///
/// Each row is one number of workers: read units, round trips and write units of a successful claim, its
/// latency, throughput as a share of workers / --split-s, concurrent coordinators, rejected requests, peak
/// demand of a partition in units per second, and dollars of control (table, coordinator and its requests)
/// per million records, 512 per split. Measured between 30 % and 90 % of the job; a job without progress
/// is given up.
///
/// Same arguments and seed, same output. Exit code: 0 all bars hold, 1 one is missed, 2 bad usage.
///
/// Examples:
///   simulate-scale --workers 10,100,1000,5000 --limits
///   simulate-scale --workers 1000 --limits --die-s 60
///   simulate-scale --real --workers 5000
///   simulate-scale --deployed --workers 10,100,1000
///   simulate-scale --deployed --workers 975 --room 200
///   simulate-scale --index --files 10000
#[derive(Debug, Clone, Parser)]
#[command(name = "simulate-scale", max_term_width = 100, verbatim_doc_comment)]
#[command(group = ArgGroup::new("mode").args(["outstanding", "real", "deployed", "index", "restart"]))]
pub struct ScaleArgs {
    /// Numbers of workers, a row each [default: 10,100,1000,5000; 100 with --index and --restart]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    workers: Vec<u32>,
    /// Enforce a partition's limits
    #[arg(long)]
    pub limits: bool,
    /// Seconds per split of a worker
    #[arg(long, value_name = "S", default_value = "0.3", value_parser = seconds)]
    pub split_s: Duration,
    /// Splits of the job [default: 64 per worker, at least 8,192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=5_000_000))]
    pub splits: Option<u32>,
    /// Workers are killed after this many seconds on average; the platform reports it half a second later
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub die_s: Option<Duration>,
    /// The platform reports no death
    #[arg(long, requires = "die_s")]
    pub unreported: bool,
    /// Number of outstanding workers, all of which leave within --leaves-ms
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub outstanding: Option<u32>,
    /// See --outstanding
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "outstanding")]
    pub leaves_ms: u64,
    /// The scaler invokes the workers; then again, with the first scaler killed halfway
    #[arg(long)]
    pub real: bool,
    /// Keep all limits of AWS, for a stack that is deployed for the workers
    #[arg(long)]
    pub deployed: bool,
    /// Environments that the account has for workers [default: enough for all]
    #[arg(long, value_name = "N", requires = "deployed", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub room: Option<u32>,
    /// Only index --files files of one record
    #[arg(long)]
    pub index: bool,
    /// See --index
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "index", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    /// The trainer restarts from the beginning after --splits splits (50,000 by default)
    #[arg(long)]
    pub restart: bool,
    /// Print the cost of each kind of call
    #[arg(long)]
    pub calls: bool,
    /// Seed of latencies and deaths
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object and no table
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("give seconds, from 0.001 to 86400".to_owned()),
    }
}

impl ScaleArgs {
    /// The counts of workers to simulate.
    pub fn workers(&self) -> Vec<u32> {
        match () {
            // Each of them is one of those outstanding.
            () if self.outstanding.is_some() => vec![0],
            () if !self.workers.is_empty() => self.workers.clone(),
            () if self.index || self.restart => vec![100],
            () if self.real => vec![5_000],
            () => vec![10, 100, 1_000, 5_000],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        ScaleArgs::command().debug_assert();
        let args =
            ScaleArgs::parse_from(["simulate-scale", "--workers", "10,20", "--split-s", "1.6"]);
        assert_eq!(args.workers(), [10, 20]);
        assert_eq!(args.split_s, Duration::from_millis(1600));
        assert!(ScaleArgs::try_parse_from(["simulate-scale", "--split-s", "0"]).is_err());
        assert!(ScaleArgs::try_parse_from(["simulate-scale", "--index", "--real"]).is_err());
    }
}

//! A deployed stack: the sizes that `scripts/deploy` derives.

use gristmill_policy::plan::deployment;
use gristmill_ports::limits::{self, StackConcurrency};

/// Sizes of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackSizes {
    /// Concurrency reserved for the coordinator, and for the scaler.
    pub coordinators: u32,
    pub scalers: u32,
    /// Units a second that the table serves at once.
    pub table_reads: u32,
    pub table_writes: u32,
    /// Environments that the account has for workers.
    pub room: u32,
}

impl StackSizes {
    /// The stack that is deployed for jobs of `workers`, in an account with `room` for them, or for all.
    pub fn for_workers(workers: u32, room: Option<u32>) -> Self {
        Self {
            coordinators: deployment::coordinator_concurrency(workers),
            scalers: deployment::SCALER_CONCURRENCY,
            table_reads: deployment::warm_reads_per_s(workers),
            table_writes: deployment::warm_writes_per_s(workers),
            room: room.unwrap_or(u32::MAX),
        }
    }

    pub fn partitions(&self) -> u32 {
        limits::table_partitions(self.table_reads, self.table_writes)
    }

    pub fn concurrency(&self) -> StackConcurrency {
        StackConcurrency::documented(self.coordinators, self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Numbers that functions of `scripts/lib/deployment.sh` print for `workers`.
    fn scripted(workers: u32) -> Vec<u32> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/lib/deployment.sh");
        let print = format!(
            ". {script}; coordinator_for {workers}; echo $SCALER_PLACES; warm_reads_for {workers}; \
             warm_writes_for {workers}"
        );
        let printed = Command::new("bash").args(["-c", &print]).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let lines = String::from_utf8(printed.stdout).unwrap();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn the_settings_are_those_that_the_script_derives() {
        for workers in
            [1, 10, 100, 119, 120, 121, 122, 424, 1_000, 1_212, 1_213, 2_500, 2_501, 5_000, 20_000]
        {
            let StackSizes { coordinators, scalers, table_reads, table_writes, .. } =
                StackSizes::for_workers(workers, None);
            let sizes = [coordinators, scalers, table_reads, table_writes];
            assert_eq!(scripted(workers), sizes, "{workers} workers");
        }
    }

    #[test]
    fn the_plan_has_the_numbers_of_the_limits() {
        let few = StackSizes::for_workers(1, None);
        let new_table = (limits::NEW_TABLE_READS_PER_S, limits::NEW_TABLE_WRITES_PER_S);
        assert_eq!((few.table_reads, few.table_writes), new_table);
        assert_eq!(deployment::url_requests_per_s(7), limits::url_requests_per_s(7));
        assert_eq!(deployment::PREFIX_PUTS_PER_S, limits::PREFIX_PUTS_PER_S);
    }

    #[test]
    fn a_new_table_has_four_partitions_and_one_for_thousands_has_more() {
        assert_eq!(StackSizes::for_workers(100, None).partitions(), 4);
        assert_eq!(StackSizes::for_workers(1_000, None).partitions(), 4);
        assert!(StackSizes::for_workers(5_000, None).partitions() > 16);
    }
}

//! Jobs of a deployed stack, which keeps all limits of AWS.

use crate::{
    deployment::DeploymentParameters,
    modes::{LEAST_SPLITS, SPLITS_A_STARTED_WORKER},
    stack::StackSizes,
};
use gristmill_ports::limits::{GROWTH, GROWTH_PERIOD};

/// `setting` with a stack that is deployed for its workers, and as many splits as are made while they begin, and then as
/// without limits.
pub fn with_stack(setting: DeploymentParameters, room: Option<u32>) -> DeploymentParameters {
    let stack = Some(StackSizes::for_workers(setting.workers, room));
    let setting = DeploymentParameters { limits: true, real: true, stack, ..setting };
    let periods = f64::from(setting.runnable().saturating_sub(GROWTH)) / f64::from(GROWTH);
    let begins = GROWTH_PERIOD.mul_f64(periods);
    let meanwhile = (begins.as_secs_f64() / 2.0 / setting.split.as_secs_f64()) as u32;
    let splits = setting.runnable() * (SPLITS_A_STARTED_WORKER + meanwhile);
    DeploymentParameters { splits: splits.max(LEAST_SPLITS), ..setting }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{modes::trained, report::FigureRow};
    use std::time::Duration;

    /// A job of `workers` with splits that take `split_ms`.
    fn job(workers: u32, split_ms: u64, room: Option<u32>) -> DeploymentParameters {
        let split = Duration::from_millis(split_ms);
        let setting = DeploymentParameters {
            workers,
            split,
            split_batches: 1,
            files: 4,
            ..DeploymentParameters::default()
        };
        with_stack(setting, room)
    }

    fn assert_holds(row: &FigureRow) {
        let missed: Vec<_> = row.bars.iter().filter(|bar| !bar.holds()).collect();
        assert!(missed.is_empty(), "{missed:?} of {:?}", row.facts);
    }

    #[test]
    fn a_hundred_workers_reach_their_bars_within_all_limits() {
        assert_holds(&trained(job(100, 300, None)).unwrap());
    }

    #[test]
    fn five_thousand_environments_take_forty_seconds_and_none_is_started_twice() {
        // Splits so long that few are made.
        let setting = DeploymentParameters { splits: 5_000 * 8 * 3, ..job(5_000, 12_000, None) };
        let row = trained(setting).unwrap();
        let begun = row.fact("99 % run after s");
        assert!((38.0..55.0).contains(&begun), "{begun} s");
        assert_eq!(row.fact("workers started twice"), 0.0);
        assert!(row.fact("events sent per worker") < 1.05, "{:?}", row.facts);
    }

    #[test]
    fn where_few_fit_few_events_are_sent_and_none_of_them_reads_the_window() {
        // Twenty minutes, in which events would expire twenty times.
        let setting = DeploymentParameters { splits: 200 * 48, ..job(975, 25_000, Some(200)) };
        let row = trained(setting).unwrap();
        assert_holds(&row);
        let events = row.fact("events sent per worker");
        assert!((4.0..10.0).contains(&events), "{events}");
        let expired = row.call("release, expired").unwrap();
        assert!(expired.calls > 100, "{expired:?}");
        assert!(expired.read_units + expired.write_units < 4.0, "{expired:?}");
    }

    #[test]
    fn calls_that_the_url_rejects_cost_no_reads_of_the_window() {
        let mut setting = job(400, 300, None);
        let enough = trained(setting.clone()).unwrap();
        // The URL serves a third of what these workers ask for.
        setting.stack = setting.stack.map(|stack| StackSizes { coordinators: 20, ..stack });
        let row = trained(setting).unwrap();
        assert!(row.fact("calls rejected by the URL") > 1_000.0, "{:?}", row.facts);
        let reads = |row: &FigureRow| row.fact("read units a claim");
        assert!(reads(&row) < 3.0 * reads(&enough), "{} for {}", reads(&row), reads(&enough));
        assert!(row.fact("most reads of a partition in 1 s") < 3_000.0, "{:?}", row.facts);
    }
}

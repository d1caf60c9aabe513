//! The steps of synthetic ranks.

/// Steps of each rank, in each run of a training.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankSteps {
    runs: Vec<Vec<u64>>,
    /// Batches that were given again, because the last step of an epoch had too few.
    pub tail_repeats: u64,
}

impl RankSteps {
    /// A run of so many `ranks` begins.
    pub fn begin_run(&mut self, ranks: usize) {
        self.runs.push(vec![0; ranks]);
    }

    /// `rank` of the current run took a batch; `is_repeat` if it was given again at the end of an epoch.
    pub fn took(&mut self, rank: usize, is_repeat: bool) {
        if let Some(steps) = self.runs.last_mut().and_then(|run| run.get_mut(rank)) {
            *steps += 1;
        }
        self.tail_repeats += u64::from(is_repeat);
    }

    /// Steps of each rank in each run, in order.
    pub fn runs(&self) -> &[Vec<u64>] {
        &self.runs
    }

    /// Steps of each rank in all runs together.
    pub fn totals(&self) -> Vec<u64> {
        let ranks = self.runs.iter().map(Vec::len).max().unwrap_or(0);
        let total = |rank| self.runs.iter().filter_map(|run| run.get(rank)).sum();
        (0..ranks).map(total).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_other_numbers_of_ranks_add_up() {
        let mut steps = RankSteps::default();
        assert_eq!(steps.totals(), Vec::<u64>::new());
        steps.begin_run(2);
        (0..2).for_each(|rank| steps.took(rank, false));
        steps.begin_run(3);
        (0..3).for_each(|rank| steps.took(rank, rank == 2));
        assert_eq!(steps.runs(), [vec![1, 1], vec![1, 1, 1]]);
        assert_eq!((steps.totals(), steps.tail_repeats), (vec![2, 2, 1], 1));
    }
}

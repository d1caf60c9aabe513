//! `--resize`: other numbers of ranks from some steps on.

use std::{collections::VecDeque, num::NonZeroU32};

/// Another number of ranks from a step on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankResize {
    /// The number of ranks.
    pub ranks: NonZeroU32,
    /// Steps of the job before it.
    pub step: u64,
}

impl RankResize {
    /// Reads `3@40`.
    ///
    /// # Errors
    /// The value to give instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('@').and_then(|(ranks, step)| {
            Some(Self { ranks: ranks.parse().ok()?, step: step.parse().ok()? })
        });
        parsed.ok_or_else(|| "give N@STEP, such as 3@40".to_owned())
    }
}

/// The resizes that are left, in order of their steps.
pub struct ResizeSchedule(VecDeque<RankResize>);

impl ResizeSchedule {
    pub fn new(resizes: &[RankResize]) -> Self {
        let mut resizes = resizes.to_vec();
        resizes.sort_by_key(|resize| resize.step);
        Self(resizes.into())
    }

    /// Takes the next resize, if it is due after `step` steps of the job; returns its number of ranks.
    pub fn take_due(&mut self, step: u64) -> Option<NonZeroU32> {
        self.0.pop_front_if(|resize| resize.step <= step).map(|resize| resize.ranks)
    }

    /// Names the resizes that a job of `step` steps did not reach.
    pub fn say_left(&self, step: u64) {
        for RankResize { ranks, step: at } in &self.0 {
            gristmill_client::complain!(
                "the job ended after {step} steps, before --resize {ranks}@{at}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_names_ranks_and_step() {
        let ranks = NonZeroU32::new(3).unwrap();
        assert_eq!(RankResize::parse("3@40"), Ok(RankResize { ranks, step: 40 }));
        for text in ["", "3", "@40", "0@40", "3@-1", "3@x"] {
            assert!(RankResize::parse(text).is_err(), "{text}");
        }
    }
}

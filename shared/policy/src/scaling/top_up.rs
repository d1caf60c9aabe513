//! The number of workers to invoke: the target is held while there is work to claim. Workers leave by
//! themselves when there is none.

use super::ScalerFacts;
use serde::{Deserialize, Serialize};

/// Workers to invoke now, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopUp {
    pub invoke: u32,
    pub reason: String,
}

/// Tops up the outstanding workers to the target while there is work to claim. Never invokes more workers than there
/// are positions to claim: an idle worker costs money.
pub fn top_up(facts: &ScalerFacts, target: u32) -> TopUp {
    let ScalerFacts { claimable, outstanding, .. } = *facts;
    let missing = target.saturating_sub(outstanding);
    let invoke = missing.min(claimable);
    let reason = match (invoke, claimable, outstanding) {
        (0, 0, _) => "nothing to claim".to_owned(),
        (0, _, _) => format!("{outstanding} of {target} workers outstanding"),
        (_, _, 0) => format!("wake: {claimable} splits to claim, no worker"),
        _ => format!("top up to {target}: {claimable} splits to claim"),
    };
    TopUp { invoke, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(claimable: u32, outstanding: u32) -> ScalerFacts {
        ScalerFacts { claimable, outstanding, ..ScalerFacts::default() }
    }

    #[test]
    fn holds_the_target_only_while_there_is_work() {
        let invoke = |claimable, outstanding| top_up(&facts(claimable, outstanding), 8).invoke;
        assert_eq!(invoke(100, 0), 8, "wake from zero");
        assert_eq!(invoke(100, 5), 3, "top up");
        assert_eq!(invoke(100, 9), 0, "never beyond the target");
        assert_eq!(invoke(0, 0), 0, "no work, no workers");
        assert_eq!(invoke(2, 0), 2, "no more workers than work");
    }

    #[test]
    fn says_why() {
        let reason = |claimable, outstanding| top_up(&facts(claimable, outstanding), 8).reason;
        assert_eq!(reason(0, 3), "nothing to claim");
        assert_eq!(reason(9, 8), "8 of 8 workers outstanding");
        assert_eq!(reason(9, 0), "wake: 9 splits to claim, no worker");
        assert_eq!(reason(9, 1), "top up to 8: 9 splits to claim");
    }
}

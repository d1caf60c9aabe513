//! How many workers to invoke. Today: a fixed target, held while there is work that may be claimed,
//! let go when there is none (workers leave by themselves when they find nothing to claim).

use serde::{Deserialize, Serialize};

/// What the scaler sees of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Invocations sent and not known to have ended.
    pub outstanding: u32,
}

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Workers to hold while there is work.
    pub target: u32,
}

/// Workers to invoke now, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub invoke: u32,
    pub reason: String,
}

/// Tops the outstanding workers up to the target while there is claimable work; never more workers
/// than positions to claim, since one without work is paid for nothing.
pub fn decide(observation: &Observation, settings: &Settings) -> Decision {
    let Observation { claimable, outstanding } = *observation;
    let missing = settings.target.saturating_sub(outstanding);
    let invoke = missing.min(claimable);
    let reason = match (invoke, claimable, outstanding) {
        (0, 0, _) => "nothing to claim".to_owned(),
        (0, _, _) => format!("{outstanding} of {} workers outstanding", settings.target),
        (_, _, 0) => format!("wake: {claimable} splits to claim, no worker"),
        _ => format!("top up to {}: {claimable} splits to claim", settings.target),
    };
    Decision { invoke, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_target_only_while_there_is_work() {
        let settings = Settings { target: 8 };
        let invoke = |claimable, outstanding| {
            decide(&Observation { claimable, outstanding }, &settings).invoke
        };
        assert_eq!(invoke(100, 0), 8, "wake from zero");
        assert_eq!(invoke(100, 5), 3, "top up");
        assert_eq!(invoke(100, 9), 0, "never beyond the target");
        assert_eq!(invoke(0, 0), 0, "no work, no workers");
        assert_eq!(invoke(2, 0), 2, "no more workers than work");
    }
}

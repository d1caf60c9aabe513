//! The function platform: concurrency, start rate and warm environments.

use crate::ModelConditions;

/// Environments of one speed.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    running: u32,
    warm: u32,
}

/// Invocations and environments of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelPlatform {
    /// Invoked and not ended.
    pub outstanding: u32,
    /// Workers that hold a lease.
    pub at_work: u32,
    /// Environments of each speed class, busy and idle.
    kinds: Vec<Kind>,
    /// Environments that may be started now, and the time of the last update.
    tokens: f64,
    counted_s: Option<f64>,
}

impl ModelPlatform {
    /// Accepted invocations out of `desired`.
    pub fn grant(&mut self, desired: u32, now_s: f64, conditions: &ModelConditions) -> u32 {
        let most = conditions.scale_up_per_10s;
        self.tokens = match self.counted_s {
            None => most,
            Some(since_s) => (self.tokens + (now_s - since_s) * most / 10.0).min(most),
        };
        self.counted_s = Some(now_s);
        let room = conditions.grantable().saturating_sub(self.outstanding);
        // Only cold starts need tokens.
        let warm: u32 = self.kinds.iter().map(|kind| kind.warm).sum();
        let startable = warm.saturating_add(self.tokens as u32);
        let granted = desired.min(room).min(startable);
        self.tokens -= f64::from(granted.saturating_sub(warm));
        self.outstanding += granted;
        granted
    }

    /// Takes an environment for one invocation: its speed class, and whether it starts cold. Classes are kept equally
    /// frequent, so that a count means the same mix however it was reached; otherwise no count would be optimal.
    pub fn take_environment(&mut self, conditions: &ModelConditions) -> (usize, bool) {
        self.kinds.resize(conditions.speeds.len().max(1), Kind::default());
        let fewest = |kind: &usize| self.kinds[*kind].running;
        let kind = (0..self.kinds.len()).min_by_key(fewest).unwrap_or(0);
        let taken = &mut self.kinds[kind];
        taken.running += 1;
        let is_cold = taken.warm == 0;
        if !is_cold {
            taken.warm -= 1;
        }
        (kind, is_cold)
    }

    /// Whether a worker of this class should leave: there are more than the target, and more of its class than its share.
    pub fn is_superfluous(&self, kind: usize, target: u32) -> bool {
        let share = f64::from(target) / self.kinds.len().max(1) as f64;
        self.outstanding > target && f64::from(self.kinds[kind].running) > share
    }

    /// Ends an invocation; its environment stays warm unless it died.
    pub fn ended(&mut self, kind: usize, stays_warm: bool) {
        self.outstanding -= 1;
        self.kinds[kind].running -= 1;
        self.kinds[kind].warm += u32::from(stays_warm);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::ScalingScenario;

    #[test]
    fn a_mix_of_machines_keeps_its_shares() {
        let text =
            "name = 'w'\n[trainer]\nstep = '1s'\n[worker]\ncompute = '1s'\nslowness = [1.0, 2.0]\n";
        let conditions =
            ScalingScenario::parse(text, "w.toml").unwrap().phases[0].conditions.clone();
        let mut platform = ModelPlatform::default();
        assert_eq!(platform.grant(10, 0.0, &conditions), 10);
        let kinds: Vec<usize> = (0..10).map(|_| platform.take_environment(&conditions).0).collect();
        assert_eq!(kinds.iter().sum::<usize>(), 5, "half of each");
        // Two of the four that are left are of each class, in any order.
        for kind in [0, 0, 0, 0, 0, 1, 1, 1, 1, 1] {
            if platform.is_superfluous(kind, 4) {
                platform.ended(kind, true);
            }
        }
        assert_eq!(platform.kinds.iter().map(|kind| kind.running).collect::<Vec<_>>(), [2, 2]);
        platform.grant(1, 1.0, &conditions);
        assert!(!platform.take_environment(&conditions).1, "one that is up");
    }
}

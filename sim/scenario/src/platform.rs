//! The function platform: how many run, how fast more may start, which environments are warm.

use crate::World;

/// Books of the invocations of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Platform {
    /// Invoked and not ended.
    pub outstanding: u32,
    /// Holding a lease.
    pub at_work: u32,
    warm: u32,
    /// Environments that may be added now, and since when that is counted.
    tokens: f64,
    counted_s: Option<f64>,
}

impl Platform {
    /// How many of `wanted` invocations are accepted now.
    pub fn grant(&mut self, wanted: u32, now_s: f64, world: &World) -> u32 {
        let most = world.scale_up_per_10s;
        self.tokens = match self.counted_s {
            None => most,
            Some(since_s) => (self.tokens + (now_s - since_s) * most / 10.0).min(most),
        };
        self.counted_s = Some(now_s);
        let room = world.grantable().saturating_sub(self.outstanding);
        // Only environments that are not there yet need one.
        let startable = self.warm.saturating_add(self.tokens as u32);
        let granted = wanted.min(room).min(startable);
        self.tokens -= f64::from(granted.saturating_sub(self.warm));
        self.outstanding += granted;
        granted
    }

    /// An environment for one invocation; true if it starts cold.
    pub fn take_environment(&mut self) -> bool {
        let is_cold = self.warm == 0;
        self.warm = self.warm.saturating_sub(1);
        is_cold
    }

    /// An invocation ended; its environment stays unless it died.
    pub fn ended(&mut self, stays_warm: bool) {
        self.outstanding -= 1;
        self.warm += u32::from(stays_warm);
    }
}

//! The function platform: how many run, how fast more may start, which environments are warm.

use crate::World;

/// Books of the invocations of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Platform {
    /// Invoked and not ended.
    pub outstanding: u32,
    /// Holding a lease.
    pub at_work: u32,
    /// Slowness of each environment that is up and idle.
    warm: Vec<f64>,
    /// Environments made so far.
    made: usize,
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
        let warm = self.warm.len() as u32;
        let startable = warm.saturating_add(self.tokens as u32);
        let granted = wanted.min(room).min(startable);
        self.tokens -= f64::from(granted.saturating_sub(warm));
        self.outstanding += granted;
        granted
    }

    /// An environment for one invocation: its slowness, and whether it starts cold. Kinds of machines
    /// take turns, so that a scenario means the same mix under every seed.
    pub fn take_environment(&mut self, world: &World) -> (f64, bool) {
        if let Some(slowness) = self.warm.pop() {
            return (slowness, false);
        }
        self.made += 1;
        let kinds = world.speeds.len().max(1);
        let slowness = world.speeds.get((self.made - 1) % kinds).copied().unwrap_or(1.0);
        (slowness, true)
    }

    /// An invocation ended; its environment stays unless it died.
    pub fn ended(&mut self, slowness: f64, stays_warm: bool) {
        self.outstanding -= 1;
        if stays_warm {
            self.warm.push(slowness);
        }
    }
}

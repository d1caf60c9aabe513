//! Whether a client computes or waits.

/// Counts of a trainer's waits and batches: one that announces each wait computes between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitCounts {
    /// Waits that the trainer announced, and batches sent to it.
    announced: u64,
    sent: u64,
}

impl WaitCounts {
    /// The trainer waits from now on.
    pub fn announce(&mut self) {
        self.announced += 1;
    }

    /// A batch is sent to it.
    pub fn send(&mut self) {
        self.sent += 1;
    }

    /// Whether the trainer computes. One that announces nothing is taken to wait.
    pub fn trainer_computes(self) -> bool {
        self.announced > 0 && self.announced <= self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_computes_between_the_waits_that_it_announces() {
        let computes = |announced, sent| WaitCounts { announced, sent }.trainer_computes();
        assert!(!computes(0, 0) && !computes(0, 5), "it announces nothing");
        assert!(!computes(1, 0) && computes(1, 1) && !computes(2, 1) && computes(2, 2));
    }
}

//! A shared limit, such as a source's bandwidth: first come, first served.

/// Time at which it is free again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharedLimit {
    free_s: f64,
}

impl SharedLimit {
    /// Completion time of `amount` requested at `at_s`, at rate `per_s`; immediate without a limit.
    pub fn serve(&mut self, at_s: f64, amount: f64, per_s: f64) -> f64 {
        if per_s.is_infinite() {
            return at_s;
        }
        self.free_s = self.free_s.max(at_s) + amount / per_s;
        self.free_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_serves_one_after_the_other_and_no_faster_than_its_rate() {
        let mut server = SharedLimit::default();
        assert_eq!(server.serve(1.0, 10.0, 5.0), 3.0);
        assert_eq!(server.serve(2.0, 5.0, 5.0), 4.0, "waits for the one before");
        assert_eq!(server.serve(9.0, 5.0, 5.0), 10.0, "idle between");
        assert_eq!(server.serve(9.5, 5.0, f64::INFINITY), 9.5);
    }
}

//! From measured coverage to a count: the arithmetic of the search.
//!
//! Capacity is a concave function of the count, starting at zero. So the ray from the origin through a count that is
//! too low ends at or before the right count, and the chord between two counts ends at or after it. Without contention
//! both are exact.

use serde::{Deserialize, Serialize};

/// A count that was tried, and its coverage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Point {
    pub workers: f64,
    pub covered: f64,
}

impl Point {
    /// Workers that cover `goal` if capacity keeps growing in proportion.
    pub fn ray(&self, goal: f64) -> f64 {
        self.workers * goal / self.covered.max(1e-9)
    }

    /// Workers between the two that cover `goal` if capacity grows linearly from one to the other.
    pub fn chord(&self, high: &Point, goal: f64) -> f64 {
        let slope = (high.covered - self.covered) / (high.workers - self.workers).max(1e-9);
        if slope <= 1e-9 {
            return high.workers;
        }
        (self.workers + (goal - self.covered) / slope).min(high.workers)
    }

    /// Share of the expected growth that `more` workers brought: 1 without contention, 0 if they only take
    /// from each other.
    pub fn gain(&self, more: &Point) -> f64 {
        let expected = more.workers / self.workers - 1.0;
        if expected <= 0.0 { 1.0 } else { (more.covered / self.covered - 1.0) / expected }
    }

    /// Workers that cover `goal` if batch time is a + b / workers (each worker slows all others by the same
    /// amount), through this point and `more`; `None` if it is never covered.
    pub fn hyperbola(&self, more: &Point, goal: f64) -> Option<f64> {
        let (t1, t2) = (1.0 / self.covered.max(1e-9), 1.0 / more.covered.max(1e-9));
        let b = (t1 - t2) / (1.0 / self.workers - 1.0 / more.workers);
        let a = t1 - b / self.workers;
        let room = 1.0 / goal - a;
        (b > 0.0 && room > 0.0).then(|| b / room)
    }
}

/// The fewest whole workers, at least 1. Tolerates rounding errors of a whole count.
pub fn whole(workers: f64) -> u32 {
    // The cast saturates; NaN becomes 0.
    ((workers - 1e-6).ceil().max(1.0)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(workers: f64, covered: f64) -> Point {
        Point { workers, covered }
    }

    #[test]
    fn rays_and_chords_enclose_the_knee() {
        // Capacity 1 / 20 each up to 10 workers, flat beyond.
        let (low, high) = (point(8.0, 0.4), point(16.0, 0.5));
        assert!((low.ray(0.5) - 10.0).abs() < 1e-9);
        assert!((low.chord(&high, 0.5) - 16.0).abs() < 1e-9);
        assert!(low.gain(&point(10.0, 0.5)) > 0.99 && point(10.0, 0.5).gain(&high) < 0.01);
    }

    #[test]
    fn a_hyperbola_through_two_counts_meets_the_third() {
        let covered = |workers: f64| 1.0 / (0.2 + 12.0 / workers);
        let [a, b] = [4.0, 8.0].map(|workers| point(workers, covered(workers)));
        let workers = a.hyperbola(&b, covered(14.0)).unwrap();
        assert!((workers - 14.0).abs() < 1e-6, "{workers}");
        assert_eq!(a.hyperbola(&b, 6.0), None, "5 is the most there can be");
    }

    #[test]
    fn counts_are_whole() {
        assert_eq!([0.0, 0.2, 1.0, 1.000_000_1, 1.01, f64::NAN].map(whole), [1, 1, 1, 1, 2, 1]);
        assert_eq!(whole(f64::INFINITY), u32::MAX);
    }
}

//! A fixed share of local workers.

use serde::{Deserialize, Serialize};
use std::fmt;

const WHOLE: u32 = 1_000_000;

/// Share of all splits that local workers make, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalShare(u32);

impl LocalShare {
    /// A share of 0 to 1; none for another number.
    pub fn new(share: f64) -> Option<Self> {
        // The cast is of a number within the bounds.
        (0.0..=1.0).contains(&share).then(|| Self((share * f64::from(WHOLE)).round() as u32))
    }

    /// Whether `local` of `all` splits are within one of the part that falls to one of `hosts`.
    pub fn allows(self, local: u64, all: u64, hosts: u32) -> bool {
        let part = u128::from(all) * u128::from(self.0.min(WHOLE));
        let hosts = u128::from(hosts.max(1));
        u128::from(local) * hosts * u128::from(WHOLE) <= part + hosts * u128::from(WHOLE)
    }
}

impl fmt::Display for LocalShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_be_one_split_ahead_of_its_part() {
        let half = LocalShare::new(0.5).unwrap();
        assert!(half.allows(1, 0, 1) && half.allows(6, 10, 1) && !half.allows(7, 10, 1));
        assert!(half.allows(3, 10, 2) && !half.allows(4, 10, 2), "2.5 and one");
        let all = LocalShare::new(1.0).unwrap();
        assert!((0..100).all(|n| all.allows(n + 1, n, 1)));
        assert_eq!(half.to_string(), "50.0 %");
        assert_eq!([-0.1, 1.1, f64::NAN].map(LocalShare::new), [None; 3]);
        assert!(all.allows(u64::MAX, u64::MAX, 1) && !half.allows(u64::MAX, u64::MAX, 9));
    }
}

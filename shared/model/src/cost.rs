//! Dollars, and a cost by item: the one form in which plans, runs, jobs and caches say what they cost.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Mul, Sub},
};

/// An amount of US dollars.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Usd(pub f64);

/// Digits shown of an amount below a dollar: enough to see 1 % of it.
const SIGNIFICANT_DIGITS: i32 = 3;
/// Digits shown of less than a tenth of a cent, so that tables stay narrow.
const SIGNIFICANT_DIGITS_OF_LITTLE: i32 = 2;
/// Most decimal places: the cheapest request costs $0.000000125.
const MAX_PLACES: i32 = 12;

/// Prints `$1234`, `$12.30`, `$0.0123`, `$0.000034`: no exponent, at least two digits.
impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.0.abs();
        let sign = if self.0 < 0.0 { "-" } else { "" };
        let places = match amount {
            0.0 => 0,
            _ if amount >= 1000.0 => 0,
            _ if amount >= 1.0 => 2,
            _ => {
                let digits =
                    if amount >= 0.001 { SIGNIFICANT_DIGITS } else { SIGNIFICANT_DIGITS_OF_LITTLE };
                // The first digit of 0.0123 is two places after the point.
                (digits - 1 - amount.log10().floor() as i32).clamp(2, MAX_PLACES)
            }
        };
        let mut text = format!("{amount:.*}", places as usize);
        let places_left = |text: &str| text.find('.').map_or(0, |point| text.len() - point - 1);
        while text.ends_with('0') && places_left(&text) > 2 {
            text.pop();
        }
        f.pad(&format!("{sign}${text}"))
    }
}

impl Add for Usd {
    type Output = Usd;
    fn add(self, other: Usd) -> Usd {
        Usd(self.0 + other.0)
    }
}

impl Sub for Usd {
    type Output = Usd;
    fn sub(self, other: Usd) -> Usd {
        Usd(self.0 - other.0)
    }
}

impl Mul<f64> for Usd {
    type Output = Usd;
    fn mul(self, times: f64) -> Usd {
        Usd(self.0 * times)
    }
}

impl Sum for Usd {
    fn sum<I: Iterator<Item = Usd>>(amounts: I) -> Usd {
        amounts.fold(Usd::default(), Add::add)
    }
}

/// A cost by item.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CostBreakdown {
    /// Time of functions, or of the instances that replace them.
    pub compute: Usd,
    /// Invocations, puts, gets, and units of the table.
    pub requests: Usd,
    /// Object storage over time.
    pub storage: Usd,
    /// Data leaving a region or a network.
    pub transfer: Usd,
    /// The trainer's time.
    pub accelerator: Usd,
}

impl CostBreakdown {
    /// The sum of all items.
    pub fn total(&self) -> Usd {
        self.preprocessing() + self.accelerator
    }

    /// The sum of all items except the trainer's time.
    pub fn preprocessing(&self) -> Usd {
        let CostBreakdown { compute, requests, storage, transfer, accelerator: _ } = *self;
        compute + requests + storage + transfer
    }

    /// Items as (name, dollars), in field order.
    pub fn items(&self) -> [(&'static str, Usd); 5] {
        let CostBreakdown { compute, requests, storage, transfer, accelerator } = *self;
        [
            ("compute", compute),
            ("requests", requests),
            ("storage", storage),
            ("transfer", transfer),
            ("accelerator", accelerator),
        ]
    }
}

impl Add for CostBreakdown {
    type Output = CostBreakdown;
    fn add(self, other: CostBreakdown) -> CostBreakdown {
        CostBreakdown {
            compute: self.compute + other.compute,
            requests: self.requests + other.requests,
            storage: self.storage + other.storage,
            transfer: self.transfer + other.transfer,
            accelerator: self.accelerator + other.accelerator,
        }
    }
}

impl AddAssign for CostBreakdown {
    fn add_assign(&mut self, other: CostBreakdown) {
        *self = *self + other;
    }
}

impl Mul<f64> for CostBreakdown {
    type Output = CostBreakdown;
    fn mul(self, times: f64) -> CostBreakdown {
        CostBreakdown {
            compute: self.compute * times,
            requests: self.requests * times,
            storage: self.storage * times,
            transfer: self.transfer * times,
            accelerator: self.accelerator * times,
        }
    }
}

impl Sum for CostBreakdown {
    fn sum<I: Iterator<Item = CostBreakdown>>(costs: I) -> CostBreakdown {
        costs.fold(CostBreakdown::default(), Add::add)
    }
}

//! Policies by name. A job selects one, and the scaler's state holds the policy's.

use super::{
    Decision, MetricsOrigin, POLICIES, PolicyName, Reason, ScalerFacts, Settings, TrainingReport,
    WorkerMetrics,
};
use std::{fmt, str::FromStr};

/// A scaling policy: its state between two reports, and a decision for each report.
pub trait ScalingPolicy {
    /// State before the first report of a job; `stored` is what its like measured before.
    fn begin(settings: &Settings, stored: Option<&WorkerMetrics>) -> Self
    where
        Self: Sized;

    /// Workers to hold until the next report.
    fn target(&self) -> u32;

    /// Takes one report; returns the target, at most `most`. For a policy that gives no reasons.
    fn next_target(&mut self, _: &TrainingReport, _: &ScalerFacts, _most: u32) -> u32 {
        self.target()
    }

    /// Takes one report, and decides within [`Settings::cap`].
    fn decide(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Decision {
        let reason = Reason::Moved { from: self.target() };
        Decision { target: self.next_target(report, facts, settings.cap().0), reason }
    }

    /// Whether the count is good.
    fn has_converged(&self) -> bool {
        true
    }

    /// Measurements that later jobs may begin with, once it is certain.
    fn metrics(&self) -> Option<WorkerMetrics> {
        None
    }

    /// Whether it rests on what earlier jobs measured.
    fn origin(&self) -> MetricsOrigin {
        MetricsOrigin::Measured
    }
}

/// No registered policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no scaling policy is called `{0}`: choose one of {names}", names = PolicyName::choices())]
pub struct UnknownPolicy(String);

impl PolicyName {
    /// All names, for messages: `coverage, cachew, hpa, tfdata`.
    pub fn choices() -> String {
        POLICIES.iter().map(Self::as_str).collect::<Vec<_>>().join(", ")
    }
}

impl Default for PolicyName {
    fn default() -> Self {
        POLICIES[0]
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let known = POLICIES.iter().find(|policy| policy.as_str() == name);
        known.copied().ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Declares [`PolicyName`], [`POLICIES`] and [`Policy`](super::Policy). A policy has the name of its module.
macro_rules! policies {
    ($($module:ident::$name:ident: $about:literal),+ $(,)?) => {
        /// The name of a registered policy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum PolicyName {
            $($name),+
        }

        /// Every policy; the first is the default.
        pub const POLICIES: &[PolicyName] = &[$(PolicyName::$name),+];

        impl PolicyName {
            pub const fn as_str(&self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($module)),+
                }
            }

            /// One line about the policy.
            pub const fn about(&self) -> &'static str {
                match self {
                    $(Self::$name => $about),+
                }
            }

            /// The policy before the first report of a job; `stored` is what its like measured before.
            pub fn begin(&self, settings: &Settings, stored: Option<&WorkerMetrics>) -> Policy {
                match self {
                    $(Self::$name => Policy::$name(ScalingPolicy::begin(settings, stored))),+
                }
            }
        }

        /// A registered policy with its state.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum Policy {
            $($name($module::$name)),+
        }

        impl Policy {
            /// The name that selects this policy.
            pub fn name(&self) -> PolicyName {
                match self {
                    $(Self::$name(_) => PolicyName::$name),+
                }
            }
        }

        impl std::ops::Deref for Policy {
            type Target = dyn ScalingPolicy;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(policy) => policy),+
                }
            }
        }

        impl std::ops::DerefMut for Policy {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$name(policy) => policy),+
                }
            }
        }
    };
}

pub(super) use policies;

#[cfg(test)]
mod tests {
    use super::{super::Policy, *};

    const FACTS: ScalerFacts =
        ScalerFacts { clients: 1, claimable: 100, outstanding: 2, throttled: 0, mode: 0 };

    fn report(batches: u64) -> TrainingReport {
        TrainingReport {
            batches,
            step_s: 0.05,
            stall_s: 0.2,
            remote_workers: 2.0,
            remote_source_s: 0.2,
            remote_compute_s: 0.6,
            ..TrainingReport::default()
        }
    }

    #[test]
    fn every_policy_is_selected_by_its_name_and_keeps_its_state_when_stored() {
        let settings = Settings { start: 2, max_workers: 12, ..Settings::default() };
        for name in POLICIES {
            assert_eq!(name.as_str().parse(), Ok(*name));
            assert!(!name.about().is_empty() && !name.about().ends_with('.'), "{name}");
            let mut policy = name.begin(&settings, None);
            assert_eq!(policy.name(), *name);
            for batches in (100..2_000).step_by(100) {
                let decision = policy.decide(&report(batches), &FACTS, &settings);
                assert!((1..=12).contains(&decision.target), "{name}: {decision:?}");
                assert_eq!(decision.target, policy.target(), "{name}");
                let stored = serde_json::to_string(&policy).unwrap();
                assert_eq!(serde_json::from_str::<Policy>(&stored).unwrap(), policy, "{name}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_an_unknown_one_lists_them() {
        for (position, name) in POLICIES.iter().enumerate() {
            assert_eq!(POLICIES.iter().position(|other| other == name), Some(position));
        }
        assert_eq!(PolicyName::default().as_str(), "coverage");
        let unknown = "guess".parse::<PolicyName>().unwrap_err().to_string();
        assert!(
            unknown.starts_with("no scaling policy is called `guess`: choose one of coverage, ")
        );
        assert!(POLICIES.iter().all(|name| unknown.contains(name.as_str())), "{unknown}");
    }
}

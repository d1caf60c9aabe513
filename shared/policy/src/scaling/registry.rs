//! Policies by name. A job selects one, and the scaler's state holds the policy's.

use super::{
    Decision, MetricsOrigin, POLICIES, Policy, ScalerFacts, Settings, TrainingReport, WorkerMetrics,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, str::FromStr};

/// A scaling policy: its state between two reports, and a pure decision for each report.
pub trait ScalingPolicy: fmt::Debug + Clone + PartialEq + Serialize + DeserializeOwned {
    /// Selects the policy.
    const NAME: &'static str;
    /// One line for people.
    const ABOUT: &'static str;

    /// State before the first report.
    fn begin(settings: &Settings) -> Self;

    /// State before the first report of a job whose like measured `metrics` before.
    fn begin_with(settings: &Settings, _metrics: &WorkerMetrics) -> Self {
        Self::begin(settings)
    }

    /// Measurements that later jobs may begin with, once it is certain.
    fn metrics(&self) -> Option<WorkerMetrics> {
        None
    }

    /// Whether it rests on what earlier jobs measured.
    fn origin(&self) -> MetricsOrigin {
        MetricsOrigin::Measured
    }

    /// Workers to hold until the next report.
    fn target(&self) -> u32;

    /// Takes one report; returns the target, at most `most`. For a policy that gives no reasons.
    fn next_target(&mut self, _: &TrainingReport, _: &ScalerFacts, _most: u32) -> u32 {
        self.target()
    }

    /// Takes one report, and decides within [`Settings::cap`]. Not called while [`Settings::fixed`] is set.
    fn decide(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Decision {
        let before = self.target();
        Decision::moved(before, self.next_target(report, facts, settings.cap().0))
    }

    /// Whether the count is good.
    fn has_converged(&self) -> bool {
        true
    }
}

/// The name of a registered policy.
#[derive(Clone, Copy)]
pub struct PolicyName {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) begin: fn(&Settings, Option<&WorkerMetrics>) -> Policy,
}

impl PolicyName {
    pub fn as_str(&self) -> &'static str {
        self.name
    }

    /// One line about the policy.
    pub fn about(&self) -> &'static str {
        self.about
    }

    /// All names, for messages: `coverage, cachew, hpa, tfdata`.
    pub fn choices() -> String {
        POLICIES.iter().map(Self::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The policy before the first report.
    pub fn begin(&self, settings: &Settings) -> Policy {
        (self.begin)(settings, None)
    }

    /// The policy of a job whose like measured `metrics` before.
    pub fn begin_with(&self, settings: &Settings, metrics: &WorkerMetrics) -> Policy {
        (self.begin)(settings, Some(metrics))
    }
}

impl PartialEq for PolicyName {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for PolicyName {}

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyName").field(&self.name).finish()
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Default for PolicyName {
    fn default() -> Self {
        POLICIES[0]
    }
}

/// No registered policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no scaling policy is called `{0}`: choose one of {names}", names = PolicyName::choices())]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let known = POLICIES.iter().find(|policy| policy.name == name);
        known.copied().ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Declares [`Policy`] and [`POLICIES`].
macro_rules! policies {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// Every policy; the first is the default.
        pub const POLICIES: &[PolicyName] = &[$(PolicyName {
            name: <$module::$name as ScalingPolicy>::NAME,
            about: <$module::$name as ScalingPolicy>::ABOUT,
            begin: |settings, metrics| Policy::$name(match metrics {
                Some(metrics) => ScalingPolicy::begin_with(settings, metrics),
                None => ScalingPolicy::begin(settings),
            }),
        }),+];

        /// A registered policy with its state.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum Policy {
            $($name($module::$name)),+
        }

        impl Policy {
            /// The name that selects this policy.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => <$module::$name as ScalingPolicy>::NAME),+
                }
            }

            /// Workers to hold until the next report.
            pub fn target(&self, settings: &Settings) -> u32 {
                let (most, _) = settings.cap();
                let target = settings.fixed.unwrap_or(match self {
                    $(Self::$name(policy) => policy.target()),+
                });
                target.clamp(1, most)
            }

            /// Takes one report, and decides.
            pub fn decide(
                &mut self,
                report: &TrainingReport,
                facts: &ScalerFacts,
                settings: &Settings,
            ) -> Decision {
                if settings.fixed.is_some() {
                    return Decision::fixed(self.target(settings));
                }
                match self {
                    $(Self::$name(policy) => ScalingPolicy::decide(policy, report, facts, settings)),+
                }
            }

            /// Measurements that later jobs may begin with; none while the count is fixed or uncertain.
            pub fn metrics(&self, settings: &Settings) -> Option<WorkerMetrics> {
                match self {
                    _ if settings.fixed.is_some() => None,
                    $(Self::$name(policy) => policy.metrics()),+
                }
            }

            /// Whether the policy rests on what earlier jobs measured.
            pub fn origin(&self) -> MetricsOrigin {
                match self {
                    $(Self::$name(policy) => policy.origin()),+
                }
            }

            /// Whether the policy has converged.
            pub fn has_converged(&self, settings: &Settings) -> bool {
                settings.fixed.is_some()
                    || match self {
                        $(Self::$name(policy) => policy.has_converged()),+
                    }
            }
        }
    };
}

pub(super) use policies;

#[cfg(test)]
mod tests {
    use super::{super::Reason, *};

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
            let mut policy = name.begin(&settings);
            assert_eq!(policy.name(), name.as_str());
            for batches in (100..2_000).step_by(100) {
                let decision = policy.decide(&report(batches), &FACTS, &settings);
                assert!((1..=12).contains(&decision.target), "{name}: {decision:?}");
                assert_eq!(decision.target, policy.target(&settings), "{name}");
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

    #[test]
    fn a_fixed_number_of_workers_disables_every_policy() {
        let settings = Settings { fixed: Some(7), ..Settings::default() };
        for name in POLICIES {
            let mut policy = name.begin(&settings);
            let decision = policy.decide(&report(100), &FACTS, &settings);
            assert_eq!(decision, Decision { target: 7, reason: Reason::Fixed { workers: 7 } });
            assert_eq!(policy, name.begin(&settings), "{name}");
        }
    }
}

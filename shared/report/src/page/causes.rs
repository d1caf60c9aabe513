//! Colours and order of the causes, common to the whole page.

use super::scene::Scene;
use super::words::shown;
use crate::Cause;
use crate::number::amount;
use std::collections::BTreeMap;

/// Operators with a colour of their own; the others share one. More colours are hard to distinguish.
const OPS_MAX: usize = 4;

/// The operators that took longest, longest first.
pub(super) struct Causes {
    ops: Vec<String>,
}

/// A cause as drawn: position in bars and legends, class, name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Drawn {
    place: usize,
    pub class: &'static str,
    pub name: String,
}

impl Causes {
    pub fn of(scene: &Scene<'_>) -> Causes {
        let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
        for span in &scene.epochs {
            for op in &span.epoch.workers.ops {
                *seconds.entry(&op.name).or_default() += amount(op.seconds);
            }
            for part in span.epoch.stalls.iter().flat_map(|stalls| &stalls.parts) {
                if let Cause::Op(name) = &part.cause {
                    *seconds.entry(name).or_default() += amount(part.seconds);
                }
            }
        }
        let mut ops: Vec<(&str, f64)> = seconds.into_iter().collect();
        ops.sort_by(|a, b| b.1.total_cmp(&a.1));
        // A single remaining operator keeps its name instead of "other ops".
        let named = if ops.len() == OPS_MAX + 1 { OPS_MAX + 1 } else { OPS_MAX };
        Causes { ops: ops.into_iter().take(named).map(|(name, _)| name.to_owned()).collect() }
    }

    pub fn drawn(&self, cause: &Cause) -> Drawn {
        const OPS: [&str; OPS_MAX + 1] = ["q-op1", "q-op2", "q-op3", "q-op4", "q-op5"];
        const AFTER_OPS: usize = 1 + OPS.len();
        let after =
            |place, class| Drawn { place: AFTER_OPS + place, class, name: cause.to_string() };
        match cause {
            Cause::Source => Drawn { place: 0, class: "q-source", name: cause.to_string() },
            Cause::Op(name) => match self.ops.iter().position(|op| op == name) {
                Some(index) => {
                    Drawn { place: 1 + index, class: OPS[index], name: shown(&cause.to_string()) }
                }
                None => {
                    Drawn { place: OPS.len(), class: OPS[OPS_MAX], name: "other ops".to_owned() }
                }
            },
            Cause::Put => after(0, "q-put"),
            Cause::Work => after(1, "q-work"),
            Cause::Queue => after(2, "q-queue"),
            Cause::Fetch => after(3, "q-fetch"),
            Cause::Decode => after(4, "q-decode"),
            Cause::Other => after(5, "q-other"),
        }
    }
}

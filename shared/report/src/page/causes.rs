//! Colours and order of the causes, common to the whole page.

use super::scene::TimelineScene;
use super::words::shown;
use crate::StallCause;
use crate::number::amount;
use std::collections::BTreeMap;

/// Operators with a colour of their own; the others share one. More colours are hard to distinguish.
const OPS_MAX: usize = 4;

/// The operators that took longest, longest first.
pub(super) struct CauseOrder {
    ops: Vec<String>,
}

/// A cause as drawn: position in bars and legends, class, name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DrawnCause {
    place: usize,
    pub class: &'static str,
    pub name: String,
}

impl CauseOrder {
    pub fn from_scene(scene: &TimelineScene<'_>) -> CauseOrder {
        let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
        for span in &scene.epochs {
            for op in &span.epoch.workers.ops {
                *seconds.entry(&op.name).or_default() += amount(op.seconds);
            }
            for part in span.epoch.stalls.iter().flat_map(|stalls| &stalls.parts) {
                if let StallCause::Op(name) = &part.cause {
                    *seconds.entry(name).or_default() += amount(part.seconds);
                }
            }
        }
        let mut ops: Vec<(&str, f64)> = seconds.into_iter().collect();
        ops.sort_by(|a, b| b.1.total_cmp(&a.1));
        // A single remaining operator keeps its name instead of "other ops".
        let named = if ops.len() == OPS_MAX + 1 { OPS_MAX + 1 } else { OPS_MAX };
        CauseOrder { ops: ops.into_iter().take(named).map(|(name, _)| name.to_owned()).collect() }
    }

    pub fn drawn(&self, cause: &StallCause) -> DrawnCause {
        const OPS: [&str; OPS_MAX + 1] = ["q-op1", "q-op2", "q-op3", "q-op4", "q-op5"];
        const AFTER_OPS: usize = 1 + OPS.len();
        let after =
            |place, class| DrawnCause { place: AFTER_OPS + place, class, name: cause.to_string() };
        match cause {
            StallCause::Source => {
                DrawnCause { place: 0, class: "q-source", name: cause.to_string() }
            }
            StallCause::Op(name) => match self.ops.iter().position(|op| op == name) {
                Some(index) => DrawnCause {
                    place: 1 + index,
                    class: OPS[index],
                    name: shown(&cause.to_string()),
                },
                None => DrawnCause {
                    place: OPS.len(),
                    class: OPS[OPS_MAX],
                    name: "other ops".to_owned(),
                },
            },
            StallCause::Put => after(0, "q-put"),
            StallCause::Work => after(1, "q-work"),
            StallCause::Queue => after(2, "q-queue"),
            StallCause::Fetch => after(3, "q-fetch"),
            StallCause::Decode => after(4, "q-decode"),
            StallCause::Other => after(5, "q-other"),
        }
    }
}

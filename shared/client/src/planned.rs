//! The file that `gristmill plan --json` prints, as the placement of a job.

use crate::{PlacementRule, read_user_text};
use gristmill_model::{Compression, LocalShare};
use serde::Deserialize;
use std::path::Path;

/// Longest file, in bytes: a plan lists its alternatives and what it measured.
const MAX_PLAN_BYTES: u64 = 1 << 20;

/// The workers of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedWorkers {
    /// Functions, and workers on the trainer's hosts, all together.
    pub remote: u32,
    pub local: u32,
    /// Part of the splits that local workers make.
    pub share: LocalShare,
    /// Compression, unless the job has another.
    pub compress: Option<Compression>,
}

/// A plan as it is printed. What is deployed, and the pipeline's order and cache points, are not taken from it.
#[derive(Deserialize)]
struct PrintedPlan {
    placement: PrintedPlacement,
}

#[derive(Deserialize)]
struct PrintedPlacement {
    remote: u32,
    local: u32,
    share_local: f64,
    codec: Option<String>,
}

impl PlannedWorkers {
    /// Reads the file. Fails with one line that says what is wrong with it.
    fn read(path: &Path) -> Result<Self, String> {
        let text = read_user_text(path, MAX_PLAN_BYTES)?;
        let PrintedPlan { placement } = serde_json::from_str(&text)
            .map_err(|error| format!("it is not what `gristmill plan --json` prints: {error}"))?;
        let PrintedPlacement { remote, local, share_local, codec } = placement;
        if remote == 0 && local == 0 {
            return Err("it has no workers: it is of a job that reads a cache".to_owned());
        }
        // A share without workers would be nobody's.
        let share = if local == 0 { 0.0 } else { share_local };
        let share = if remote == 0 { 1.0 } else { share };
        let share = LocalShare::new(share)
            .ok_or_else(|| format!("its `share_local` is {share_local}, not 0 to 1"))?;
        let compress = codec.map(|codec| match codec.as_str() {
            "stored" => Compression::None,
            _ => Compression::Zstd,
        });
        Ok(Self { remote, local, share, compress })
    }
}

impl PlacementRule {
    /// A rule by its name, or a plan by the path of its file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "remote" => Ok(Self::Remote),
            "local" => Ok(Self::Local),
            path => PlannedWorkers::read(Path::new(path)).map(Self::Planned).map_err(|why| {
                format!("it is neither `auto`, `remote` nor `local`, and as a file: {why}")
            }),
        }
    }

    /// The workers of a plan, if it is one.
    pub(crate) fn planned(self) -> Option<PlannedWorkers> {
        match self {
            Self::Planned(planned) => Some(planned),
            Self::Auto | Self::Remote | Self::Local => None,
        }
    }
}

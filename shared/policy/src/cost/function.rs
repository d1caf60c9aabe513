//! Capability and price of a function of a given size.

use super::{PriceList, Usd, quantity};
use gristmill_model::{MB_PER_VCPU, worker_threads};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Sustained network rate of a function in each direction. Inferred from others' reports (600 Mbit/s
/// and less); neither published nor measured by us.
pub const NETWORK_BYTES_PER_S: f64 = 71e6;
/// MB in the gigabyte that memory is billed by.
const MB_PER_GB: f64 = 1024.0;

/// The instruction set of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionArchitecture {
    #[default]
    Arm64,
    #[serde(rename = "x86_64")]
    X86_64,
}

/// Size of a worker function.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionShape {
    /// 128 to 10,240.
    pub memory_mb: u32,
    pub architecture: FunctionArchitecture,
    /// Network rate in each direction.
    pub network_bytes_per_s: f64,
}

impl Default for FunctionShape {
    /// The stack's worker: one vCPU, arm64.
    fn default() -> Self {
        FunctionShape {
            memory_mb: MB_PER_VCPU as u32,
            architecture: FunctionArchitecture::Arm64,
            network_bytes_per_s: NETWORK_BYTES_PER_S,
        }
    }
}

impl FromStr for FunctionShape {
    type Err = String;

    /// Reads `MB/ARCHITECTURE`, the stack's output `WorkerShape`: `1769/arm64`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not memory and architecture, such as 1769/arm64");
        let (memory, architecture) = text.split_once('/').ok_or_else(wrong)?;
        let memory_mb = memory.parse().ok().filter(|mb| (128..=10_240).contains(mb));
        let architecture = match architecture {
            "arm64" => FunctionArchitecture::Arm64,
            "x86_64" => FunctionArchitecture::X86_64,
            _ => return Err(wrong()),
        };
        Ok(Self { memory_mb: memory_mb.ok_or_else(wrong)?, architecture, ..Self::default() })
    }
}

impl FunctionShape {
    /// Processors of the function.
    pub fn vcpus(&self) -> f64 {
        f64::from(self.memory_mb) / MB_PER_VCPU
    }

    /// Processors used for computing: those that a worker has threads for.
    pub fn computing_vcpus(&self) -> f64 {
        self.vcpus().min(f64::from(worker_threads(self.memory_mb)))
    }

    /// Price of a second, busy or idle.
    pub fn usd_per_second(&self, prices: &PriceList) -> Usd {
        let usd_per_gb_second = match self.architecture {
            FunctionArchitecture::Arm64 => prices.function.arm64_usd_per_gb_second,
            FunctionArchitecture::X86_64 => prices.function.x86_64_usd_per_gb_second,
        };
        Usd(f64::from(self.memory_mb) / MB_PER_GB * quantity(usd_per_gb_second))
    }
}

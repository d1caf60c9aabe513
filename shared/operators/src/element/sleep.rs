//! `sleep`: delays each element. For experiments.

use crate::prelude::*;

/// Longest sleep, in milliseconds: a minute per element.
const MAX_SLEEP_MS: f64 = 60_000.0;

/// The unit that one sleep delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepPer {
    Element,
}

/// Any element -> the same, `ms` milliseconds later. Uses no CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sleep {
    /// 0 to 60,000; fractions count.
    pub ms: f64,
    pub per: SleepPer,
}

impl OperatorDefinition for Sleep {
    const DECLARATION: OperatorDeclaration = element_wise("sleep", 1).costs(0, 0);

    const PARAMETERS: &'static [Parameter] = &[
        required(
            "ms",
            ParameterKind::Number { min: 0.0, max: MAX_SLEEP_MS },
            "0 to 60,000; fractions count.",
        ),
        or("per", ParameterKind::Choice(&["element"]), "element", "What one sleep is for."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let ms = real::<Self>(params, "ms")?;
        let per = choice::<Self, _>(params, "per", &[SleepPer::Element])?;
        Ok(Sleep { ms, per })
    }
}

impl Operator for Sleep {
    fn cost(&self) -> DeclaredCost {
        DeclaredCost::new((self.ms * 1e6) as u64, 0)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Wait(std::time::Duration::from_secs_f64(self.ms / 1e3)))
    }
}

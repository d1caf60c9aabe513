//! `repeat`: repeats the dataset within one epoch.

use crate::prelude::*;

/// Most repetitions.
const MAX_COUNT: u32 = 100_000;

/// Repeats all records `count` times, one repetition after the other. Random operators draw anew in each,
/// and `__copy__` numbers the repetitions. To train for several epochs use the job's `--epochs` instead: an
/// epoch has its own cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repeat {
    pub count: u32,
}

impl OperatorDefinition for Repeat {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { cardinality: Cardinality::OneToMany, ..of_dataset("repeat", 1) };

    const PARAMETERS: &'static [Parameter] =
        &[required("count", ParameterKind::Whole { min: 1, max: MAX_COUNT as u64 }, "Times.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        if params.get("count").is_none() {
            return Err(params.error(
                "`repeat` needs a `count`; to go on without end, run the job with `--epochs`",
            ));
        }
        Ok(Repeat { count: whole::<Self>(params, "count")? })
    }
}

impl Operator for Repeat {
    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Repeat { count: self.count })
    }
}

//! `interleave`: alternates between the records of several files.

use crate::prelude::*;

/// Most files read in turn.
const MAX_CYCLE: u32 = 4096;
/// Most records of a file in its turn.
const MAX_BLOCK: u32 = 1 << 20;

/// Reads `cycle_length` files in turn, `block_length` records of each; when a file ends, the next file
/// takes its place. The order is that of `tf.data.Dataset.interleave` without parallel calls. It must
/// precede the other dataset operators. Splits still come in random order, unless `in_order` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interleave {
    pub cycle_length: u32,
    pub block_length: u32,
}

impl OperatorDefinition for Interleave {
    const DECLARATION: OperatorDeclaration = of_dataset("interleave", 1);

    const PARAMETERS: &'static [Parameter] = &[
        or(
            "cycle_length",
            ParameterKind::Whole { min: 1, max: MAX_CYCLE as u64 },
            "16",
            "Files read in turn.",
        ),
        or(
            "block_length",
            ParameterKind::Whole { min: 1, max: MAX_BLOCK as u64 },
            "1",
            "Records of a file in its turn.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let cycle_length = whole::<Self>(params, "cycle_length")?;
        let block_length = whole::<Self>(params, "block_length")?;
        Ok(Interleave { cycle_length, block_length })
    }
}

impl Operator for Interleave {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        flow.works_on_files("interleave")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        let Interleave { cycle_length, block_length } = *self;
        Some(DatasetOp::Interleave { cycle_length, block_length })
    }
}

//! `duplicate`: copies an element; later random operators make the copies differ.

use crate::prelude::*;

/// Most copies of an element.
const MAX_COPIES: u32 = 1024;

/// One element -> `copies` of it, one after the other: the views of contrastive learning, such as
/// SimCLR's two. Operators before it run once per element; random operators after it draw once per copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub copies: u32,
}

impl OperatorDefinition for Duplicate {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("duplicate", 1).costs(100, 100)
    };

    const PARAMETERS: &'static [Parameter] = &[or(
        "copies",
        ParameterKind::Whole { min: 1, max: MAX_COPIES as u64 },
        "2",
        "Elements made of each.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let copies = whole::<Self>(params, "copies")?;
        Ok(Duplicate { copies })
    }
}

impl Operator for Duplicate {
    fn does_nothing(&self) -> Option<&'static str> {
        (self.copies == 1).then_some("one copy is the element itself")
    }

    fn copies(&self) -> u32 {
        self.copies
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Duplicate { copies: self.copies })
    }
}

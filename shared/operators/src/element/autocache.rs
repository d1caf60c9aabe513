//! `autocache`: a point where elements may be cached.

use crate::prelude::*;

/// Any element -> the same. The service may store the elements at this point and read them in later epochs
/// instead of computing them, if its measurements show a gain (Cachew, section 4.4). Results do not change.
/// After `batch` it caches the batches as they are delivered. Random operators may precede it only with
/// `reuse_random`; every epoch then repeats the draws of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Autocache {
    pub reuse_random: bool,
}

impl OperatorDefinition for Autocache {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { pins_position: true, ..element_wise("autocache", 1).costs(0, 0) };

    const PARAMETERS: &'static [Parameter] = &[or(
        "reuse_random",
        ParameterKind::Bool,
        "false",
        "What comes before may draw at random: every epoch then has the draws of the first, at the price of less variety.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Autocache { reuse_random: flag::<Self>(params, "reuse_random")? })
    }
}

impl Operator for Autocache {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let refused = flow.random().filter(|_| !self.reuse_random);
        if let Some((op, of_dataset)) = refused {
            // Dataset operators may not follow a cache point, so moving it before one is no option.
            let advice = if of_dataset {
                format!("leave `{op}` out")
            } else {
                format!("move it before `{op}`")
            };
            return Err(format!(
                "`autocache` comes after `{op}`, which draws at random: every epoch would repeat the \
                 draws that were cached; {advice}, or say `reuse_random: true` if that is welcome"
            ));
        }
        flow.pass_cache_point();
        Ok(())
    }

    fn cache_point(&self) -> Option<CachePointSettings> {
        Some(CachePointSettings { reuse_random: self.reuse_random })
    }
}

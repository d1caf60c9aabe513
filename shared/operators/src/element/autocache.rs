//! `autocache`: a place where elements may be cached.

use crate::prelude::*;

/// Any element -> the same. The service may store elements that come here, and read them from then on
/// instead of computing them, if measuring says that it pays (Cachew, section 4.4); it changes no
/// result. After the batch it means the batches as they are delivered. What comes before may draw
/// at random only with `reuse_random`: every epoch then has the draws of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Autocache {
    pub reuse_random: bool,
}

impl Define for Autocache {
    const DECLARATION: Declaration =
        Declaration { pins_position: true, ..element_wise("autocache", 1) };

    const PARAMETERS: &'static [Parameter] = &[or(
        "reuse_random",
        Kind::Bool,
        "false",
        "What comes before may draw at random: every epoch then has the draws of the first, at the price of less variety.",
    )];

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(Autocache { reuse_random: flag::<Self>(params, "reuse_random")? })
    }
}

impl Operator for Autocache {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let refused = flow.random().filter(|_| !self.reuse_random);
        if let Some((op, of_dataset)) = refused {
            // Nothing on the dataset may come after a point, so there it cannot be moved to.
            let advice = match of_dataset {
                true => format!("leave `{op}` out"),
                false => format!("move it before `{op}`"),
            };
            return Err(format!(
                "`autocache` comes after `{op}`, which draws at random: every epoch would repeat the \
                 draws that were cached; {advice}, or say `reuse_random: true` if that is welcome"
            ));
        }
        flow.pass_cache_point();
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        None
    }

    fn cache_point(&self) -> Option<CacheHere> {
        Some(CacheHere { reuse_random: self.reuse_random })
    }
}

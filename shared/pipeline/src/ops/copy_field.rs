//! `copy`: a field twice, for two views of it.

use super::{element_wise, into};
use crate::{Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use serde::Serialize;

/// Any field -> the same, and again in the new field `into`, whose name the element must not have yet.
/// What follows can treat them apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyField {
    pub field: String,
    pub into: String,
}

impl Operator for CopyField {
    const DECLARATION: Declaration = element_wise("copy", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(CopyField { into: into(params, "copy")?, field: params.field()? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let copy = flow.field("copy", &self.field)?.clone();
        flow.write_new("copy", &self.into, copy)?;
        flow.set_mask(&self.into, flow.is_mask(&self.field));
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }

    fn output(&self) -> Option<&str> {
        Some(&self.into)
    }
}

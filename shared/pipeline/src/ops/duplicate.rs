//! `duplicate`: an element becomes several, which random operators then make different.

use super::element_wise;
use crate::{Cardinality, Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use serde::Serialize;

/// Most copies of an element.
const MAX_COPIES: u32 = 1024;

/// One element -> `copies` of it, one after the other: the views of contrastive learning, such as
/// SimCLR's two. What comes before runs once; random operators after it draw anew for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub copies: u32,
}

impl Operator for Duplicate {
    const DECLARATION: Declaration = Declaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("duplicate", 1)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let copies = match params.get("copies") {
            Some(node) => params.whole("copies", node, 1..=MAX_COPIES)?,
            None => 2,
        };
        Ok(Duplicate { copies })
    }

    fn infer(&self, _: &mut Flow) -> Result<(), String> {
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        None
    }
}

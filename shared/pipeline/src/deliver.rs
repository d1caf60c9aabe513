//! What the trainer does with a batch after it was delivered.

use crate::{PipelineError, flow::Flow, node::Node, op::Operator, ops::Normalise, table::Table};
use serde::Serialize;

/// Recorded with the pipeline and applied by trainers: it changes no delivered byte, so that
/// batches can cross the wire as u8, at a quarter of the bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Deliver {
    pub normalise: Option<Normalise>,
}

impl Deliver {
    pub(crate) fn parse(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new("`deliver`", node)?;
        let mut deliver = Deliver::default();
        if let Some(node) = table.get("normalise")
            && node.value != crate::node::Value::Null
        {
            let mut params = Table::new("`normalise`", node)?;
            deliver.normalise = Some(Normalise::parse(&mut params)?);
            params.finish()?;
        }
        table.finish()?;
        Ok(deliver)
    }

    /// Whether it can be applied to what the pipeline delivers.
    pub(crate) fn check(&self, flow: &Flow) -> Result<(), String> {
        match &self.normalise {
            Some(normalise) => normalise.infer(&mut flow.clone()),
            None => Ok(()),
        }
    }
}

//! What happens to a batch after workers have made it.

use crate::{Op, PipelineError, Registry, Schema, Stage, flow::Flow, node::Node, table::Table};

/// The operator that trainers apply, where `deliver` has it.
const BY_TRAINER: &str = "normalise";

/// What the fetcher and then the trainer do with a batch, so that it can cross the wire as u8, at a
/// quarter of the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deliver {
    /// Operators that the fetcher applies to every element, in this order. No author writes them here: a
    /// pass moves them.
    pub stages: Vec<Stage>,
    /// Recorded with the pipeline and applied by trainers: it changes no delivered byte.
    pub normalise: Option<Op>,
}

impl Deliver {
    pub(crate) fn parse(node: &Node, registry: &Registry) -> Result<Self, PipelineError> {
        let mut table = Table::new("`deliver`", node)?;
        let deliver = Self::read(&mut table, registry)?;
        table.finish()?;
        Ok(deliver)
    }

    /// What an author may write; the table may hold more.
    pub(crate) fn read(table: &mut Table<'_>, registry: &Registry) -> Result<Self, PipelineError> {
        let mut deliver = Deliver::default();
        if let Some(node) = table.get(BY_TRAINER)
            && node.value != crate::node::Value::Null
        {
            let entry = registry.get(BY_TRAINER);
            let entry = entry.ok_or_else(|| node.error("this build cannot normalise"))?;
            let mut params = Table::new("`normalise`", node)?;
            deliver.normalise = Some(entry.parse(&mut params)?);
            params.finish()?;
        }
        Ok(deliver)
    }

    /// Takes what workers make to what is delivered: one element before each operator of the fetcher, and
    /// after the last. Checks that the trainer's part can be applied to that.
    pub(crate) fn infer(&self, flow: &mut Flow) -> Result<Vec<Schema>, String> {
        let mut schemas = vec![flow.schema().clone()];
        for stage in &self.stages {
            stage.op.infer(flow)?;
            schemas.push(flow.schema().clone());
        }
        if let Some(normalise) = &self.normalise {
            normalise.infer(&mut flow.clone())?;
        }
        Ok(schemas)
    }
}

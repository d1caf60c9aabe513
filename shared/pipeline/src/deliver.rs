//! What happens to a batch after workers have made it.

use crate::{
    PipelineError, Schema, Stage, flow::Flow, node::Node, op::Operator, ops::Normalise,
    table::Table,
};

/// What the fetcher and then the trainer do with a batch, so that it can cross the wire as u8, at a
/// quarter of the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deliver {
    /// Operators that the fetcher applies to every element, in this order. No author writes them here: a
    /// pass moves them.
    pub stages: Vec<Stage>,
    /// Recorded with the pipeline and applied by trainers: it changes no delivered byte.
    pub normalise: Option<Normalise>,
}

impl Deliver {
    pub(crate) fn parse(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new("`deliver`", node)?;
        let deliver = Self::read(&mut table)?;
        table.finish()?;
        Ok(deliver)
    }

    /// What an author may write; the table may hold more.
    pub(crate) fn read(table: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut deliver = Deliver::default();
        if let Some(node) = table.get("normalise")
            && node.value != crate::node::Value::Null
        {
            let mut params = Table::new("`normalise`", node)?;
            deliver.normalise = Some(Normalise::parse(&mut params)?);
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

//! Operators that apply to a batch after workers have made it.

use crate::{
    BoxedOperator, ElementSchema, OperatorRegistry, PipelineError, PipelineStage, flow::SchemaFlow,
    node::SyntaxNode, table::MappingReader,
};

/// The operator of `deliver` that trainers apply.
const BY_TRAINER: &str = "normalise";

/// Operators that the fetcher and then the trainer apply to a batch. The batch can so cross the
/// wire as u8, at a quarter of the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeliveryOperators {
    /// Operators that the fetcher applies to every element, in this order. A pass moves them here;
    /// authors cannot write them.
    pub stages: Vec<PipelineStage>,
    /// Recorded with the pipeline and applied by trainers. It changes no delivered byte.
    pub normalise: Option<BoxedOperator>,
}

impl DeliveryOperators {
    pub(crate) fn parse(
        node: &SyntaxNode,
        registry: &OperatorRegistry,
    ) -> Result<Self, PipelineError> {
        let mut table = MappingReader::new("`deliver`", node)?;
        let deliver = Self::read(&mut table, registry)?;
        table.finish()?;
        Ok(deliver)
    }

    /// Reads the keys that an author may write; the table may have others.
    pub(crate) fn read(
        table: &mut MappingReader<'_>,
        registry: &OperatorRegistry,
    ) -> Result<Self, PipelineError> {
        let mut deliver = DeliveryOperators::default();
        if let Some(node) = table.get(BY_TRAINER)
            && node.value != crate::node::NodeValue::Null
        {
            let entry = registry.get(BY_TRAINER);
            let entry = entry.ok_or_else(|| node.error("this build cannot normalise"))?;
            let mut params = MappingReader::new("`normalise`", node)?;
            deliver.normalise = Some(entry.parse(&mut params)?);
            params.finish()?;
        }
        Ok(deliver)
    }

    /// Infers the element before each operator of the fetcher and after the last, starting from the
    /// output of workers. Checks that the trainer can apply its part to the result.
    pub(crate) fn infer(&self, flow: &mut SchemaFlow) -> Result<Vec<ElementSchema>, String> {
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

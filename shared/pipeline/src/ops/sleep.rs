//! `sleep`: every element takes longer. For studies.

use super::element_wise;
use crate::{Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use serde::Serialize;

/// Longest sleep, in milliseconds: a minute per element.
const MAX_SLEEP_MS: f64 = 60_000.0;

/// What one sleep is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepPer {
    Element,
}

/// Any element -> the same, `ms` milliseconds later. Uses no CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sleep {
    /// 0 to 60,000; fractions count.
    pub ms: f64,
    pub per: SleepPer,
}

impl Operator for Sleep {
    const DECLARATION: Declaration = element_wise("sleep", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let ms = params.require("ms")?;
        let ms = params.number("ms", ms, 0.0..=MAX_SLEEP_MS)?;
        let per = match params.get("per") {
            Some(node) => params.choice("per", node, &[("element", SleepPer::Element)])?,
            None => SleepPer::Element,
        };
        Ok(Sleep { ms, per })
    }

    fn infer(&self, _: &mut Flow) -> Result<(), String> {
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        None
    }
}

//! What a pipeline is compiled with: all that its operators need and it does not say itself.

use crate::{
    ExecError, Program,
    assets::{Assets, NoAssets},
    user::Operators,
};
use gristmill_pipeline::{Op, Pipeline};

/// Compiles pipelines. With nothing set, those whose operators need nothing beside the pipeline.
#[derive(Clone, Copy)]
pub struct Compiler<'a> {
    #[cfg_attr(not(feature = "tokenise"), allow(dead_code, reason = "nothing else needs files"))]
    pub(crate) assets: &'a dyn Assets,
    /// None: none.
    pub(crate) operators: Option<&'a Operators>,
    pub(crate) fuse: bool,
}

impl std::fmt::Debug for Compiler<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Compiler").field("fuse", &self.fuse).finish_non_exhaustive()
    }
}

impl Default for Compiler<'_> {
    fn default() -> Self {
        Compiler { assets: &NoAssets, operators: None, fuse: true }
    }
}

impl<'a> Compiler<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the files are that operators name by the hash of their content.
    #[must_use]
    pub fn assets(self, assets: &'a dyn Assets) -> Self {
        Compiler { assets, ..self }
    }

    /// The operators of users that this program was built with.
    #[must_use]
    pub fn operators(self, operators: &'a Operators) -> Self {
        Compiler { operators: Some(operators), ..self }
    }

    /// Every operator is a step of its own: slower, equal in what it makes, and its metrics tell operators
    /// apart.
    #[must_use]
    pub fn apart(self) -> Self {
        Compiler { fuse: false, ..self }
    }

    /// How metrics and errors call an operator.
    pub(crate) fn name(&self, op: &Op) -> &'static str {
        let user = match op {
            Op::Custom(op) => self.operators.and_then(|operators| operators.name(&op.name)),
            _ => None,
        };
        user.unwrap_or_else(|| op.name())
    }

    /// Compiles a pipeline.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run it, or a file that an operator needs is missing or not
    /// what it should be; [`ExecError::Output`] if its tensors cannot be stored.
    pub fn compile(&self, pipeline: &Pipeline) -> Result<Program, ExecError> {
        Program::compile_with(pipeline, self)
    }
}

//! What a pipeline is compiled with: all that its operators need and it does not say itself.

use crate::{ExecError, Program};
use gristmill_kernel::{Assets, NoAssets};
use gristmill_pipeline::Pipeline;

/// Compiles pipelines. With nothing set, those whose operators need nothing beside the pipeline.
#[derive(Clone, Copy)]
pub struct Compiler<'a> {
    pub(crate) assets: &'a dyn Assets,
    pub(crate) fuse: bool,
}

impl std::fmt::Debug for Compiler<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Compiler").field("fuse", &self.fuse).finish_non_exhaustive()
    }
}

impl Default for Compiler<'_> {
    fn default() -> Self {
        Compiler { assets: &NoAssets, fuse: true }
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

    /// Every operator is a step of its own: slower, equal in what it makes, and its metrics tell operators
    /// apart.
    #[must_use]
    pub fn apart(self) -> Self {
        Compiler { fuse: false, ..self }
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

//! `gristmill run`: a whole run of a user's pipeline and data with a synthetic trainer.

use crate::{
    read_pipeline,
    training::{self, TrainOptions},
};
use gristmill_client::ProgramFailure;
use std::path::PathBuf;

/// Run your own pipeline and data, with a synthetic trainer
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  gristmill run examples/resnet50.yaml --data 'shards/train-*' --epochs 2"
)]
pub struct RunArgs {
    /// Pipeline file (YAML)
    pipeline: PathBuf,
    #[command(flatten)]
    train: TrainOptions,
}

impl RunArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let authored = read_pipeline(&self.pipeline)?;
        let source = authored.source(&self.pipeline, self.train.job.data.as_deref());
        training::train(&self.train, "run", authored, source.map_err(ProgramFailure::usage)?).await
    }
}

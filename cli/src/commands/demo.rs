//! `gristmill demo`: a whole run on generated photographs.

use crate::{
    read_pipeline,
    training::{self, RESNET, TrainOptions, make_dataset},
};
use gristmill_client::{Failure, Source};
use gristmill_synthetic::DatasetSpec;
use std::path::{Path, PathBuf};

/// Run the whole system on generated JPEGs, with a synthetic trainer
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill demo\n  gristmill demo --epochs 1 --images 500 --workers 4 --json\n  gristmill demo --sink /tmp/batches --chaos kill-workers"
)]
pub struct Args {
    /// Images to generate if --data is not given
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    images: u64,
    /// Pipeline file to run instead of the ResNet pipeline
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
    #[command(flatten)]
    train: TrainOptions,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        let authored = match &self.pipeline {
            Some(path) => read_pipeline(path)?,
            None => gristmill_operators::parse(RESNET).map_err(Failure::failed)?.into(),
        };
        let source = match (&self.train.job.data, &self.pipeline) {
            (Some(data), _) => Source::parse(data, Path::new(".")).map_err(Failure::usage)?,
            // Only one dataset is generated.
            (None, Some(path)) if authored.pipeline.source().is_zip() => {
                authored.source(path).map_err(Failure::usage)?
            }
            (None, _) => {
                let spec = DatasetSpec::images(self.images, self.train.job.seed);
                let root = make_dataset(spec).await?;
                Source::Local { root, patterns: vec!["train-*".to_owned()] }
            }
        };
        training::train(&self.train, "demo", authored, source).await
    }
}

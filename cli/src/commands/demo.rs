//! `gristmill demo`: a whole run on generated photographs.

use crate::{
    read_pipeline,
    training::{self, RESNET, TrainOptions, make_dataset},
};
use gristmill_client::{AuthoredPipeline, DatasetLocation, ProgramFailure};
use gristmill_synthetic::DatasetSpec;
use std::path::{Path, PathBuf};

/// Records per batch of the ResNet pipeline here: three epochs are 375 batches, enough steps for several ranks and
/// two resizes, of a dataset that is generated in seconds.
const BATCH_SIZE: u32 = 16;

/// Run the whole system on generated JPEGs, with a synthetic trainer
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("batch_size", |arg| arg.help(
        "Records per batch [default: that of --pipeline; 16 without it, so that a small dataset has steps enough for \
         --ranks and --resize]"
    )),
    after_help = "Examples:\n  gristmill demo\n  gristmill demo --epochs 1 --images 500 --workers 4 --json\n  gristmill demo --sink /tmp/batches --chaos kill-workers\n  gristmill demo --ranks 4 --resize 3@40 --resize 5@90"
)]
pub struct DemoArgs {
    /// Images to generate if --data is not given
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    images: u64,
    /// Pipeline file to run instead of the ResNet pipeline
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
    #[command(flatten)]
    train: TrainOptions,
}

impl DemoArgs {
    pub async fn run(mut self) -> Result<(), ProgramFailure> {
        let authored: AuthoredPipeline = match &self.pipeline {
            Some(path) => read_pipeline(path)?,
            None => {
                self.train.job.batch_size.get_or_insert(BATCH_SIZE);
                gristmill_operators::parse(RESNET).map_err(ProgramFailure::failed)?.into()
            }
        };
        let source = match (&self.train.job.data, &self.pipeline) {
            (Some(data), _) => {
                DatasetLocation::parse(data, Path::new(".")).map_err(ProgramFailure::usage)?
            }
            // Only one dataset is generated.
            (None, Some(path)) if authored.pipeline.source().is_zip() => {
                authored.source(path, None).map_err(ProgramFailure::usage)?
            }
            (None, _) => {
                let spec = DatasetSpec::images(self.images, self.train.job.seed);
                let root = make_dataset(spec).await?;
                DatasetLocation::local(root, "train-*")
            }
        };
        self.train.own_service = true;
        training::train(&self.train, "demo", authored, source).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The resizes of the help's example, at 40 steps of four ranks and 50 of three, leave steps for the last run.
    #[test]
    fn the_defaults_have_batches_for_two_resizes() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: DemoArgs,
        }
        let Line { args } = clap::Parser::parse_from(["demo"]);
        let batches = args.images.div_ceil(BATCH_SIZE.into()) * u64::from(args.train.job.epochs);
        assert!(batches >= 40 * 4 + 50 * 3 + 20, "{batches}");
    }
}

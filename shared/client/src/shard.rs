//! Static sharding: one part of a dataset, as a job of its own. It becomes the operator `shard` of the job's pipeline.

use crate::{
    AuthoredPipeline, DatasetLocation, JobOptions, ProgramFailure, sample::SampledDatasets,
};
use gristmill_model::{DatasetOp, JobName};
use gristmill_operators::{Shard, ShardUnit};
use gristmill_pipeline::{BoxedOperator, Pipeline, PipelineError, PipelineStage};
use std::{fmt, str::FromStr};

/// One of several parts of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetShard {
    /// From 0.
    pub index: u32,
    pub count: u32,
}

/// By what a dataset is divided into shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ShardPolicy {
    /// Batches of records in turn
    #[default]
    Data,
    /// Files in turn
    File,
    /// Files if there are as many as shards, else batches
    FileOrData,
    /// As the operator `shard` of the pipeline says; without one, every shard is the whole dataset
    Hint,
}

/// Divides the dataset between jobs that know nothing of each other.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ShardOptions {
    /// Read part I of N parts of the dataset, counted from 0, such as 3/5. Each part is a job of its own; ranks of one job
    /// need no shards. The parts have no record in common. `--job NAME` becomes NAME-sI-of-N
    #[arg(long, value_name = "I/N")]
    pub shard: Option<DatasetShard>,
    /// The unit that the parts take in turn
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub shard_by: ShardPolicy,
}

impl FromStr for DatasetShard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').map(|(index, count)| (index.parse(), count.parse()));
        match numbers {
            Some((Ok(index), Ok(count))) if index < count => Ok(Self { index, count }),
            Some((Ok::<u32, _>(_), Ok::<u32, _>(count))) if count > 0 => {
                Err(format!("the parts are numbered from 0 to {}", count - 1))
            }
            _ => Err("it is the number of a part and how many there are, such as 3/5".to_owned()),
        }
    }
}

impl fmt::Display for DatasetShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl ShardOptions {
    /// The name of the job of this part.
    pub fn job_name(&self, name: &JobName) -> Result<JobName, ProgramFailure> {
        let Some(DatasetShard { index, count }) = self.shard else { return Ok(name.clone()) };
        format!("{name}-s{index}-of-{count}").parse().map_err(ProgramFailure::usage)
    }
}

impl AuthoredPipeline {
    /// The pipeline as `options` shape it for a job over the dataset at `source`: the batch size and the shard.
    ///
    /// # Errors
    /// There are no such batches or shards, or the dataset cannot be listed.
    pub async fn shaped(
        self,
        source: &DatasetLocation,
        options: &JobOptions,
    ) -> Result<Self, ProgramFailure> {
        let this = self.with_batch_size(options.batch_size)?;
        let Some(shard) = options.shard.shard else { return Ok(this) };
        let found = this.pipeline.stages().iter().position(is_shard);
        let pipeline = match (options.shard.shard_by, found) {
            (ShardPolicy::Hint, Some(at)) => hinted(&this.pipeline, at, shard),
            (ShardPolicy::Hint, None) => {
                crate::complain!(
                    "--shard-by hint finds no `shard` in the pipeline: every shard is the whole dataset"
                );
                return Ok(this);
            }
            (_, Some(_)) => {
                return Err(ProgramFailure::usage(
                    "the pipeline has a `shard` of its own: give --shard-by hint",
                ));
            }
            (by, None) => {
                let unit = unit(&this.pipeline, source, by, shard).await?;
                divided(&this.pipeline, shard, unit)
            }
        };
        let pipeline = pipeline.map_err(ProgramFailure::usage)?;
        Ok(Self { pipeline, ..this })
    }
}

fn is_shard(stage: &PipelineStage) -> bool {
    let op = stage.op.dataset();
    matches!(op, Some(DatasetOp::ShardFiles { .. } | DatasetOp::ShardRecords { .. }))
}

/// The pipeline with the numbers of `shard` in its operator at `at`.
fn hinted(
    pipeline: &Pipeline,
    at: usize,
    DatasetShard { index, count }: DatasetShard,
) -> Result<Pipeline, PipelineError> {
    let op = match pipeline.stages()[at].op.dataset() {
        Some(DatasetOp::ShardRecords { block, .. }) => {
            Shard { index, count, by: ShardUnit::Record, block }
        }
        _ => Shard { index, count, by: ShardUnit::File, block: 1 },
    };
    pipeline.with_operator(at..at + 1, BoxedOperator::new(op))
}

/// The pipeline with a `shard` in front of the first shuffle: parts of an order that is shuffled already would depend on the
/// size of splits.
fn divided(
    pipeline: &Pipeline,
    DatasetShard { index, count }: DatasetShard,
    by: ShardUnit,
) -> Result<Pipeline, PipelineError> {
    let goes_on = |stage: &&PipelineStage| match stage.op.dataset() {
        Some(DatasetOp::Shuffle { .. }) | None => false,
        Some(_) => by == ShardUnit::Record,
    };
    let at = pipeline.stages().iter().take_while(goes_on).count();
    let block = if by == ShardUnit::Record { pipeline.batch_size() } else { 1 };
    pipeline.with_operator(at..at, BoxedOperator::new(Shard { index, count, by, block }))
}

/// The unit that `by` means for the dataset at `source`.
async fn unit(
    pipeline: &Pipeline,
    source: &DatasetLocation,
    by: ShardPolicy,
    shard: DatasetShard,
) -> Result<ShardUnit, ProgramFailure> {
    if by == ShardPolicy::Data {
        return Ok(ShardUnit::Record);
    }
    let files = SampledDatasets::find(pipeline, source.clone()).await?.n_files();
    let DatasetShard { count, .. } = shard;
    match by {
        _ if files >= u64::from(count) => Ok(ShardUnit::File),
        ShardPolicy::FileOrData => {
            crate::complain!(
                "--shard-by file-or-data: {files} files are not enough for {count} shards, so they take batches in turn"
            );
            Ok(ShardUnit::Record)
        }
        _ => Err(ProgramFailure::usage(format!(
            "--shard-by file: {files} files are not enough for {count} shards; use fewer, or --shard-by data"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_its_count() {
        assert_eq!("3/5".parse(), Ok(DatasetShard { index: 3, count: 5 }));
        for (text, why) in [
            ("5/5", "from 0 to 4"),
            ("0/0", "such as 3/5"),
            ("3", "such as 3/5"),
            ("-1/5", "such as 3/5"),
            ("a/5", "such as 3/5"),
        ] {
            assert!(text.parse::<DatasetShard>().unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn the_parts_are_dealt_before_the_shuffle_and_after_what_chooses_records() {
        let order = |ops: &str, by| {
            let yaml = format!(
                "source: {{ jsonl: a.jsonl, features: {{ x: {{ dtype: i64 }} }} }}\nops: [{ops}, batch: {{ size: 3 }}]"
            );
            let pipeline = gristmill_operators::parse(&yaml).unwrap();
            divided(&pipeline, DatasetShard { index: 1, count: 2 }, by).map(|pipeline| {
                assert!(pipeline.stages().iter().any(|stage| {
                    stage.op.dataset()
                        == Some(DatasetOp::ShardRecords { index: 1, count: 2, block: 3 })
                        || stage.op.dataset() == Some(DatasetOp::ShardFiles { index: 1, count: 2 })
                }));
                pipeline.operator_names().join(" ")
            })
        };
        let records = |ops| order(ops, ShardUnit::Record).unwrap();
        assert_eq!(
            records("take: { count: 9 }, shuffle, in_order"),
            "take shard shuffle in_order batch"
        );
        assert_eq!(records("interleave, repeat: { count: 2 }"), "interleave repeat shard batch");
        let files = |ops| order(ops, ShardUnit::File);
        assert_eq!(files("interleave, shuffle").unwrap(), "shard interleave shuffle batch");
    }
}

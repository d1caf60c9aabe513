//! The order in which a job runs the operators of a pipeline. All that runs, prices or explains one asks
//! [`AuthoredPipeline::ordered`].

use crate::{
    AuthoredPipeline, DatasetLocation, ProgramFailure,
    sample::{self, SampledDatasets},
};
use gristmill_pipeline::Pipeline;
use gristmill_pipeline::passes::{
    MeasuredBytes, OptimisedPipeline, PassChange, PassNote, needs_sizes, optimise,
};

/// Elements whose sizes decide the order. They are the first of the dataset, so its version fixes them; a run begins
/// after they are computed, so they are few.
pub const ORDER_ELEMENTS: u32 = 64;

/// Whether sizes that the pipeline does not tell are measured on the first elements of the dataset, or are as declared,
/// such as by `typical_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SizeMeasuring {
    #[default]
    On,
    Off,
}

/// How operators are ordered.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OrderOptions {
    /// Measure the first elements of the dataset where `auto_order: pecan` needs their sizes; `off` keeps declared sizes
    #[arg(long, value_enum, default_value_t, value_name = "on|off")]
    pub measure: SizeMeasuring,
}

impl OrderOptions {
    /// Whether the order of the pipeline's operators depends on sizes that are measured.
    pub fn measures(&self, pipeline: &Pipeline) -> bool {
        self.measure == SizeMeasuring::On && needs_sizes(pipeline)
    }
}

/// A pipeline with its operators in the order in which a job runs them.
#[derive(Clone, Debug)]
pub struct OrderedPipeline {
    pub authored: AuthoredPipeline,
    /// The changes of the author's order, and those that were refused.
    pub notes: Vec<PassNote>,
}

impl OrderedPipeline {
    /// Whether any operator was moved or removed.
    pub fn is_changed(&self) -> bool {
        self.notes.iter().any(|note| !matches!(note.change, PassChange::Refused { .. }))
    }
}

impl AuthoredPipeline {
    /// The pipeline with batches of `batch_size`, if one is given.
    ///
    /// # Errors
    /// There are no batches of this size.
    pub fn with_batch_size(self, batch_size: Option<u32>) -> Result<Self, ProgramFailure> {
        let Some(size) = batch_size else { return Ok(self) };
        let pipeline = self.pipeline.with_batch_size(size).map_err(ProgramFailure::usage)?;
        Ok(Self { pipeline, ..self })
    }

    /// The pipeline as a job over the dataset at `source` runs it: a function of the dataset's version, the pipeline and
    /// `options`.
    ///
    /// # Errors
    /// The order depends on the sizes of elements, and they cannot be read.
    pub async fn ordered(
        self,
        source: &DatasetLocation,
        options: &OrderOptions,
    ) -> Result<OrderedPipeline, ProgramFailure> {
        if !options.measures(&self.pipeline) {
            return Ok(self.ordered_as_declared());
        }
        let data = SampledDatasets::find(&self.pipeline, source.clone()).await?;
        let measured = sample::measure(&self.pipeline, &self.assets, &data, ORDER_ELEMENTS).await;
        Ok(self.ordered_by(&measured?.0))
    }

    /// As [`ordered`](Self::ordered) with [`SizeMeasuring::Off`].
    pub fn ordered_as_declared(self) -> OrderedPipeline {
        self.ordered_by(&MeasuredBytes::new())
    }

    fn ordered_by(self, sizes: &MeasuredBytes) -> OrderedPipeline {
        let OptimisedPipeline { pipeline, notes } = optimise(&self.pipeline, sizes);
        OrderedPipeline { authored: Self { pipeline, ..self }, notes }
    }
}

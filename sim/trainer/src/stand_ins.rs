//! The work of ranks at one step.

use crate::SyntheticTraining;
use gristmill_chunk::{ChunkFrame, ChunkLimits, TensorDType};
use gristmill_client::ProgramFailure;
use gristmill_operators::Normalise;
use gristmill_pipeline::Pipeline;
use gristmill_ports::{Clock as _, SystemClock};
use gristmill_stream::{DeliveredBatch, RankBatch};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Stand-ins of ranks: between two steps each keeps its buffers.
pub struct RankStandIns {
    first: StandIn,
    idle: Vec<StandIn>,
}

/// Ranks that work on their batches.
pub type WorkingRanks = JoinSet<Result<StandIn, ProgramFailure>>;

impl RankStandIns {
    /// The stand-ins of all ranks of `training`.
    pub fn new(
        training: &SyntheticTraining,
        sink: Option<BatchFileSink>,
        pipeline: &Pipeline,
    ) -> Self {
        let normalise = pipeline.deliver().normalise.as_ref();
        let first = StandIn {
            step_time: training.step_time,
            step_cores: training.step_cores,
            drain: training.drain,
            normalise: normalise.and_then(|op| op.downcast_ref().cloned()),
            sink,
            pixels: Vec::new(),
        };
        Self { first, idle: Vec::new() }
    }

    /// Begins a step that came at `began`: a rank for each batch. Of replicas, the first stores the batch.
    pub fn begin(&mut self, batches: Vec<Option<RankBatch>>, began: Instant) -> WorkingRanks {
        let mut working = JoinSet::new();
        let mut stored = 0;
        for RankBatch { batch, repeated_for } in batches.into_iter().flatten() {
            let mut stand_in = self.idle.pop().unwrap_or_else(|| self.first.clone());
            let is_first = repeated_for.is_none() && batch.batch_index >= stored;
            stored = if is_first { batch.batch_index + 1 } else { stored };
            working.spawn(async move {
                if is_first {
                    stand_in.step(&batch, began).await?;
                } else {
                    stand_in.compute(&batch, began).await?;
                }
                Ok(stand_in)
            });
        }
        working
    }

    /// Waits for all ranks of a step. Cancel safe.
    pub async fn end(&mut self, working: &mut WorkingRanks) -> Result<(), ProgramFailure> {
        while let Some(done) = working.join_next().await {
            self.idle.push(done.map_err(ProgramFailure::failed)??);
        }
        Ok(())
    }
}

/// The work of one rank with a batch, as a model's would take time.
#[derive(Clone)]
pub struct StandIn {
    step_time: Duration,
    /// Processors on which it computes meanwhile.
    step_cores: f64,
    /// Discards batches.
    drain: bool,
    /// Normalisation of pixels delivered as u8.
    normalise: Option<Normalise>,
    sink: Option<BatchFileSink>,
    pixels: Vec<f32>,
}

impl StandIn {
    /// Stores the batch, and works on it until the step time after `began`.
    async fn step(&mut self, batch: &DeliveredBatch, began: Instant) -> Result<(), ProgramFailure> {
        if let Some(sink) = self.sink.as_ref().filter(|_| !self.drain) {
            sink.write(batch)?;
        }
        self.compute(batch, began).await
    }

    /// Works on a batch until the step time after `began`.
    async fn compute(
        &mut self,
        batch: &DeliveredBatch,
        began: Instant,
    ) -> Result<(), ProgramFailure> {
        if self.drain {
            return Ok(());
        }
        self.normalise(batch)?;
        let rest = self.step_time.saturating_sub(began.elapsed());
        compute_on(self.step_cores, rest).await?;
        if let Some(rest) = self.step_time.checked_sub(began.elapsed()) {
            tokio::time::sleep(rest).await;
        }
        Ok(())
    }

    /// Normalises u8 pixels as a trainer's first step would, (x / 255 - mean) / std, into a buffer
    /// of its own.
    fn normalise(&mut self, batch: &DeliveredBatch) -> Result<(), ProgramFailure> {
        let Some(Normalise { field, mean, std }) = &self.normalise else { return Ok(()) };
        let frame = ChunkFrame::parse(batch.frame.clone(), &ChunkLimits::default())
            .map_err(ProgramFailure::failed)?;
        let tensor = frame.get(field).filter(|t| t.spec().dtype == TensorDType::U8);
        let Some(tensor) = tensor else { return Ok(()) };
        let values = tensor.values();
        self.pixels.resize(values.len(), 0.0);
        // Greyscale has one number for all three channels.
        let scale: [f32; 3] = std::array::from_fn(|c| (1.0 / (255.0 * std[c % std.len()])) as f32);
        let shift: [f32; 3] =
            std::array::from_fn(|c| (-mean[c % mean.len()] / std[c % std.len()]) as f32);
        let (pixels, _) = values.as_chunks::<3>();
        let (normalised, _) = self.pixels.as_chunks_mut::<3>();
        for (pixel, out) in pixels.iter().zip(normalised) {
            for c in 0..3 {
                out[c] = f32::from(pixel[c]) * scale[c] + shift[c];
            }
        }
        std::hint::black_box(&self.pixels);
        Ok(())
    }
}

/// Computes for `time` on each of so many processors; longer, where it gets less of them.
async fn compute_on(cores: f64, time: Duration) -> Result<(), ProgramFailure> {
    let mut computing = JoinSet::new();
    let mut left = cores;
    while left > 0.0 && !time.is_zero() {
        let part = time.mul_f64(left.min(1.0));
        computing.spawn_blocking(move || {
            let end = SystemClock.thread_cpu() + part;
            while SystemClock.thread_cpu() < end {
                (0..1_000).for_each(|turn| {
                    std::hint::black_box(turn);
                });
            }
        });
        left -= 1.0;
    }
    while let Some(done) = computing.join_next().await {
        done.map_err(ProgramFailure::failed)?;
    }
    Ok(())
}

// `--sink`: every delivered batch as a file, so that anyone can check what was delivered.

/// A directory of `e{epoch}-b{batch:06}.safetensors` files.
#[derive(Debug, Clone)]
pub struct BatchFileSink {
    dir: PathBuf,
}

impl BatchFileSink {
    /// Creates the directory if it is missing. One that holds batches of another run is refused,
    /// because the two could not be distinguished.
    pub fn open(dir: &Path) -> Result<Self, ProgramFailure> {
        let named = |error: &dyn std::fmt::Display| {
            ProgramFailure::usage(format!("cannot use sink {}: {error}", dir.display()))
        };
        fs::create_dir_all(dir).map_err(|error| named(&error))?;
        for entry in fs::read_dir(dir).map_err(|error| named(&error))? {
            let name = entry.map_err(|error| named(&error))?.file_name();
            if name.as_encoded_bytes().ends_with(b".safetensors") {
                return Err(named(&"it holds batches already; name an empty directory"));
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Writes one batch, as it was delivered. A file that is there is whole, also after a kill.
    pub fn write(&self, batch: &DeliveredBatch) -> Result<(), ProgramFailure> {
        let name = format!("e{}-b{:06}", batch.epoch, batch.batch_index);
        let path = self.dir.join(format!("{name}.safetensors"));
        let draft = self.dir.join(format!("{name}.part"));
        let written = fs::write(&draft, &batch.frame).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            ProgramFailure::failed(format!("cannot write {}: {error}", path.display()))
        })
    }
}

//! One run of 256 ranks, and its readers: all ranks meet at each step, as in a collective operation.

use crate::{
    deployment::{DeploymentParameters, SimulatedDeployment},
    figures::ScaleFigures,
    modes::{in_deployment, start_workers},
    training::{self, BoxedError},
};
use gristmill_model::RunToken;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use gristmill_stream::{
    FetchError, Fetcher, FetcherConfig, PrefetchMemory, ServedRanks, StepDelivery, StepStream,
};
use std::{num::NonZeroU32, sync::Arc, time::Duration};
use tokio::{
    sync::Barrier,
    task::{JoinSet, LocalSet},
};

/// Ranks of the run.
pub const RANKS: u32 = 256;
/// Time from the first step to the measured part.
pub const WARM_UP: Duration = Duration::from_secs(10);
/// Longest wait for workers to make a third of the window before the first step.
const MADE_WITHIN: Duration = Duration::from_secs(900);
/// A third of the window, in splits for each worker.
const THIRD_OF_WINDOW: u64 = 8;
/// Steps between two checkpoints.
const CHECKPOINT_STEPS: u64 = 50;
/// Memory that an object of these sizes takes in a fetcher.
const OBJECT_BYTES: u64 = 1 << 16;

/// The readers of one run.
#[derive(Debug, Clone, Copy)]
pub struct ReaderFleet {
    pub readers: u32,
    /// Time that ranks compute for a step.
    pub step: Duration,
    pub measured: Duration,
}

impl ReaderFleet {
    /// The ranks of reader `number`.
    fn own(&self, number: u32) -> Result<ServedRanks, BoxedError> {
        let positive = |n| NonZeroU32::new(n).ok_or("no ranks");
        let ranks =
            RunRanks { count: positive(RANKS)?, from: Cursor::default(), tail: TailPolicy::Repeat };
        let count = positive(RANKS / self.readers)?;
        Ok(ServedRanks {
            run: TrainingRun { token: RunToken::from_name("bench"), ranks, epochs: None },
            range: RankRange { first: number * count.get(), count },
            is_successor: false,
            local_workers: 0,
        })
    }
}

/// Runs until `fleet.measured` is over. Returns the measurements.
pub fn run(
    setting: DeploymentParameters,
    fleet: ReaderFleet,
) -> Result<(ScaleFigures, Arc<SimulatedDeployment>), BoxedError> {
    let ((), figures, deployment) = in_deployment(setting, async |deployment| {
        start_workers(deployment).await?;
        let local = LocalSet::new();
        let mut readers = start(deployment, fleet, &local)?;
        let measured = async {
            tokio::select! {
                biased;
                Some(ended) = readers.join_next() => Err(match ended? {
                    Ok(()) => "a reader ended before the measurement".into(),
                    Err(error) => error.into(),
                }),
                () = measure(deployment, fleet.measured) => Ok(()),
            }
        };
        local.run_until(measured).await
    })?;
    Ok((figures, deployment))
}

fn start(
    deployment: &Arc<SimulatedDeployment>,
    fleet: ReaderFleet,
    local: &LocalSet,
) -> Result<JoinSet<Result<(), String>>, BoxedError> {
    let together = Arc::new(Barrier::new(fleet.readers as usize));
    let mut readers = JoinSet::new();
    for number in 0..fleet.readers {
        let (deployment, together) = (Arc::clone(deployment), Arc::clone(&together));
        readers.spawn_local_on(read(deployment, fleet.own(number)?, fleet.step, together), local);
    }
    Ok(readers)
}

async fn measure(deployment: &Arc<SimulatedDeployment>, measured: Duration) {
    window_made(Arc::clone(deployment)).await;
    deployment.time.sleep(WARM_UP).await;
    training::begin(&mut deployment.meter.figures(), deployment);
    deployment.time.sleep(measured).await;
    deployment.meter.figures().ended = Some(deployment.now());
}

/// Resolves once workers have made a third of the window.
async fn window_made(deployment: Arc<SimulatedDeployment>) {
    let third = u64::from(deployment.setting.workers) * THIRD_OF_WINDOW;
    let is_made = || deployment.meter.figures().committed >= third;
    while !is_made() && deployment.now() < MADE_WITHIN {
        deployment.time.sleep(Duration::from_millis(100)).await;
    }
}

fn in_words(error: FetchError) -> String {
    format!("a reader: {error}")
}

/// One reader, and the ranks that it serves.
async fn read(
    deployment: Arc<SimulatedDeployment>,
    own: ServedRanks,
    step: Duration,
    together: Arc<Barrier>,
) -> Result<(), String> {
    // Two steps of its ranks.
    let objects = own.range.count.get().div_ceil(deployment.setting.split_batches);
    let config = FetcherConfig {
        own: Some(own),
        prefetch: PrefetchMemory::Bytes(2 * u64::from(objects) * OBJECT_BYTES),
        ..training::fetcher_config(&deployment)
    };
    let fetcher = Fetcher::start(training::ports(&deployment), config).await.map_err(in_words)?;
    let mut steps = StepStream::new(fetcher);
    window_made(Arc::clone(&deployment)).await;
    loop {
        let StepDelivery::Step { step: taken, next, .. } = steps.next().await.map_err(in_words)?
        else {
            return Ok(());
        };
        if together.wait().await.is_leader() {
            let mut figures = deployment.meter.figures();
            figures.steps += u64::from(figures.is_measuring());
        }
        deployment.time.sleep(step).await;
        if taken.number % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1 {
            steps.checkpointed(next);
        }
    }
}

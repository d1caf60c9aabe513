//! Opens a job's stream: starts the tasks of a [`Fetcher`].

use super::{Fetcher, FetcherConfig, FetcherPorts};
use crate::{
    FetchError, ServedRanks,
    asking::{beginning, insist},
    bounds::MemoryBound,
    cached::CacheManifestReader,
    downloader::SplitDownloader,
    ledger::SplitLedger,
    local::{self, LocalSink, LocalStore},
    patience::ProgressWatchdog,
    poller::CoordinatorPoller,
    progress::FetcherProgress,
    stream::BatchSource,
    waits::{DeliveryWaits, StageClock},
};
use gristmill_model::splits::SplitPlace;
use gristmill_model::{Epoch, Visitation};
use gristmill_runner::{JobContext, LeaseError, Runner};
use std::sync::Arc;
use tokio::task::JoinSet;

impl Fetcher {
    /// Starts streaming a registered job, and takes it over from an earlier reader.
    pub async fn start(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let fetcher = Self::open(ports, config).await?;
        fetcher.announce();
        Ok(fetcher)
    }

    /// As [`Fetcher::start`], but only prefetches: [`Fetcher::announce`] takes the job over, once the trainer's
    /// start is known.
    pub async fn open(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let runner = ports.runner(&config);
        let (context, job_epochs) = load(&runner, &config).await?;
        let visitation = context.view.spec.settings.visitation;
        let resume = beginning(&ports, &config, visitation).await?;
        let own = config.own.unwrap_or_else(|| config.one(ports.clock.nonce(), resume));
        let is_shared = is_shared(own, visitation)?;
        // Batches are counted from the start of the resumed epoch: request the entries of all its splits again.
        let start = SplitPlace::start_of(resume.epoch);
        let ledger = SplitLedger::new((*context.view).clone(), start, config.folders.clone());
        let ledger = Arc::new(ledger.with_job_epochs(job_epochs));
        let progress = Arc::new(FetcherProgress::new(own, resume));
        if visitation == Visitation::AtMostOnce {
            progress.acknowledge_always();
        }
        let bound = bound(&config, own);
        let store = Arc::new(LocalStore::new(Arc::clone(&bound), is_shared));
        let (mut tasks, mut streaming) = (JoinSet::new(), JoinSet::new());
        let stages = Arc::new(StageClock::new(ports.clock.monotonic()));
        let (objects, bucket) = (Arc::clone(&ports.objects), config.bucket.clone());
        let poller = CoordinatorPoller {
            stages: Arc::clone(&stages),
            shelves: CacheManifestReader { objects, bucket },
            job: config.job.clone(),
            registered_ms: context.view.registered_ms,
            coordinator: Arc::clone(&ports.coordinator),
            clock: Arc::clone(&ports.clock),
            ledger: Arc::clone(&ledger),
            progress: Arc::clone(&progress),
        };
        tasks.spawn(poller.run());
        let (clock, limit) = (Arc::clone(&ports.clock), config.patience);
        let (ledger_of, progress_of) = (Arc::clone(&ledger), Arc::clone(&progress));
        let patience = ProgressWatchdog { clock, ledger: ledger_of, progress: progress_of, limit };
        tasks.spawn(patience.run());
        for _ in 0..config.local_workers {
            let sink = LocalSink::new(&runner, &context, (Arc::clone(&store), Arc::clone(&ledger)));
            tasks.spawn(local::work(runner.clone(), Arc::clone(&context), sink));
        }
        let downloader = SplitDownloader {
            runner,
            context,
            ledger: Arc::clone(&ledger),
            progress: Arc::clone(&progress),
            local: store,
            bound,
        };
        let (stages_of, plan) = (Arc::clone(&stages), Arc::clone(&config.plan));
        let source = BatchSource { downloader, stages: stages_of, own, plan };
        let batches = source.stream(resume, &mut streaming);
        Ok(Self {
            ledger,
            progress,
            ports,
            config,
            batches,
            begin: resume,
            source,
            visitation,
            held: None,
            last_handed_over: None,
            last_batch: None,
            ended: false,
            stages,
            wait: Default::default(),
            waits: DeliveryWaits::default(),
            streaming,
            _tasks: tasks,
        })
    }
}

/// Whether other readers serve the rest of the run. A step of several readers that is taken at most once would have to
/// wait until the progress of the job, not only of its reader, is beyond it.
fn is_shared(own: ServedRanks, visitation: Visitation) -> Result<bool, FetchError> {
    let is_shared = !own.are_all();
    if is_shared && visitation == Visitation::AtMostOnce {
        Err(FetchError::Refused(
            "a job whose batches are visited at most once has one reader: serve all ranks by one fetcher".into(),
        ))
    } else {
        Ok(is_shared)
    }
}

/// The bound on objects ahead of the trainer.
fn bound(config: &FetcherConfig, own: ServedRanks) -> Arc<MemoryBound> {
    let holders = (config.local_workers, own.range.count.get());
    Arc::new(MemoryBound::new(config.prefetch, holders, config.object_sizes))
}

/// Reads the job, with the epochs to read of its own, and compiles its pipeline. Returns the job's epochs as well.
async fn load(
    runner: &Runner,
    config: &FetcherConfig,
) -> Result<(Arc<JobContext>, Epoch), FetchError> {
    let loading = async || JobContext::load(runner, &config.job).await;
    let refused = |error: LeaseError| FetchError::Refused(error.to_string());
    let passes = |error: &LeaseError| matches!(error, LeaseError::Passing(_));
    let mut context = insist(&*runner.clock, config.patience, loading, passes, refused).await?;
    let job_epochs = context.view.spec.epochs;
    let epochs = config.own.and_then(|own| own.run.epochs).or(config.epochs);
    context.view = Arc::new((*context.view).clone().read_until(epochs));
    Ok((Arc::new(context), job_epochs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, own};
    use gristmill_model::splits::ranks::TailPolicy;

    #[test]
    fn batches_are_visited_at_most_once_by_one_reader() {
        let ranks = |range| own(4, range, batch(0, 0), TailPolicy::Drop);
        let once = Visitation::AtMostOnce;
        assert!(!is_shared(ranks(0..4), once).unwrap());
        assert!(is_shared(ranks(0..2), Visitation::ExactlyOnce).unwrap());
        let refused = is_shared(ranks(0..2), once).unwrap_err();
        assert!(refused.to_string().contains("has one reader"), "{refused}");
    }
}

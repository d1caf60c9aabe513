//! From a pipeline and a dataset to a registered job.

use crate::{
    args::{TrainArgs, Workers},
    attach::Stack,
    failure::Failure,
    operators,
};
use gristmill_client::{Authored, Fetcher, ListError, Listing, Source};
use gristmill_model::JobName;
use gristmill_model::wire::{Dataset, JobSpec, JobView, Register};
use gristmill_pipeline::Pipeline;
use std::path::Path;

/// Reads and checks a pipeline file, and the files that it names.
pub fn read_pipeline(path: &Path) -> Result<Authored, Failure> {
    Authored::read(path, &operators::get().signatures()).map_err(Failure::usage)
}

/// Lists the dataset at `source`, offering a directory of this machine to the local service, and says which files are
/// not read.
pub async fn dataset(
    stack: &Stack,
    pipeline: &Pipeline,
    source: Source,
) -> Result<Listing, Failure> {
    let local = stack.local.as_ref();
    let mount =
        local.map(|local| async |name: &str, root: &Path| local.admin.mount(name, root).await);
    let objects = &*stack.ports.objects;
    let listed = source.list(objects, &stack.ns, &stack.bucket, pipeline.source(), mount).await;
    let listing = listed.map_err(unlisted)?;
    if !listing.left_out.is_empty() {
        eprintln!("{}", listing.left_out);
    }
    Ok(listing)
}

/// A dataset that cannot be listed.
pub fn unlisted(error: ListError) -> Failure {
    match error.is_usage() {
        true => Failure::usage(error),
        false => Failure::failed(error),
    }
}

/// Registers the job, or joins the one of its name.
pub async fn register(
    stack: &Stack,
    args: &TrainArgs,
    prefix: &str,
    authored: &Authored,
    dataset: Dataset,
) -> Result<JobView, Failure> {
    let stored = authored.store(&*stack.ports.objects, &stack.ns, &stack.bucket).await;
    stored.map_err(Failure::failed)?;
    let job: JobName = match &args.job {
        Some(job) => job.clone(),
        None => {
            let name = format!("{prefix}-{}", stack.ports.clock.nonce());
            name.parse().map_err(Failure::failed)?
        }
    };
    let spec = JobSpec {
        seed: args.seed,
        epochs: args.epochs,
        on_error: args.on_error,
        max_skipped: args.max_skipped,
        numerics: authored.numerics(args.local_workers, stack.local.is_some()),
        split_batches: args.split_batches,
        workers: args.most_workers(),
        autoscale: args.workers == Workers::Auto,
        budget_workers: args.budget_workers(),
        local_workers: args.local_workers,
        visitation: args.visitation,
        sharding: args.sharding,
        compress: args.compress.unwrap_or(authored.pipeline.compression()),
        ..JobSpec::new(authored.pipeline.canonical_json())
    };
    let register = Register::new(job, spec, dataset);
    let registered =
        Fetcher::register(&stack.ports, (&stack.ns, &stack.bucket), register, args.patience).await;
    registered.map_err(|error| match error {
        gristmill_client::FetchError::Refused(_) => Failure::usage(error),
        _ => Failure::failed(error),
    })
}

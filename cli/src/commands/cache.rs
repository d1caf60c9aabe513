//! `gristmill cache`: lists the cache, explains misses, and removes entries.

use crate::{
    output::say,
    read_pipeline,
    service::{call, open_existing},
};
use gristmill_client::{
    AuthoredPipeline, DatasetListing, DatasetLocation, OrderOptions, OrderedPipeline,
    ProgramFailure, ServiceConnection, ServiceOptions,
};
use gristmill_model::{
    ErrorPolicy, Fingerprint,
    wire::{
        CacheExplainCall, CacheListCall, CacheListReply, CacheRemoveCall, CacheRemoveReply,
        ExplainedCachePoint, JobSettings, JobSpec, ListedCacheEntry,
    },
};
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf};

/// List, explain and remove cached entries
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --endpoint, --state-dir or --backend this is the cache that `gristmill demo` and `run` keep on this machine.\n\nExamples:\n  gristmill cache ls\n  gristmill cache explain examples/autocache.yaml --data 'shards/train-*'\n  gristmill cache rm 5a3c0f"
)]
pub struct CacheArgs {
    #[command(subcommand)]
    pub command: CacheCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum CacheCommand {
    /// List cached entries, the latest first
    Ls(CacheListArgs),
    /// Report whether a pipeline's `autocache` points are cached, and if not, why
    Explain(CacheExplainArgs),
    /// Remove cached entries that no job reads
    Rm(CacheRemoveArgs),
}

#[derive(Debug, clap::Args)]
pub struct CacheListArgs {
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct CacheExplainArgs {
    /// The pipeline file
    pub pipeline: PathBuf,
    /// Dataset to read instead of the pipeline's
    #[arg(long)]
    pub data: Option<String>,
    /// Seed of the job, which random operators use
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub order: OrderOptions,
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["prefix", "all"])))]
pub struct CacheRemoveArgs {
    /// First digits of the prefix that `cache ls` prints
    pub prefix: Option<String>,
    /// Remove all entries that no job reads
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Digits that are shown of a fingerprint, and that name it: enough to be unique.
const SHOWN_DIGITS: usize = 12;

impl CacheArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        match self.command {
            CacheCommand::Ls(args) => list(args).await,
            CacheCommand::Explain(args) => explain(args).await,
            CacheCommand::Rm(args) => remove(args).await,
        }
    }
}

async fn list(args: CacheListArgs) -> Result<(), ProgramFailure> {
    let service = open_existing(&args.service).await?;
    let listed = cached(&service).await;
    service.close().await;
    let (listed, removing) = listed?;
    if args.json {
        say!("{}", json!({ "entries": listed, "removing": removing }));
        return Ok(());
    }
    for fingerprint in &removing {
        let name = short(fingerprint);
        say!(
            "{name}: a removal was begun and not finished; `gristmill cache rm {name}` finishes it"
        );
    }
    if listed.is_empty() {
        say!("nothing is cached");
        return Ok(());
    }
    say!(
        "{:<12}  {:>10}  {:>8}  {:>10}  {:>5}  stored by",
        "prefix",
        "MB",
        "splits",
        "rows",
        "uses"
    );
    for ListedCacheEntry { entry, uses, readers } in &listed {
        let (name, mb) = (short(&entry.fingerprint), entry.bytes as f64 / 1e6);
        let readers = match readers.len() {
            0 => String::new(),
            n => format!(", read by {n} jobs now"),
        };
        say!(
            "{name:<12}  {mb:>10.1}  {:>8}  {:>10}  {uses:>5.1}  {} after `{}`{readers}",
            entry.splits,
            entry.rows,
            entry.job,
            entry.after
        );
    }
    Ok(())
}

async fn explain(args: CacheExplainArgs) -> Result<(), ProgramFailure> {
    let authored = read_pipeline(&args.pipeline)?;
    if authored.pipeline.cache_points().is_empty() {
        return Err(ProgramFailure::usage(format!(
            "{} has no `autocache`: put one where elements are worth keeping",
            args.pipeline.display()
        )));
    }
    let source =
        authored.source(&args.pipeline, args.data.as_deref()).map_err(ProgramFailure::usage)?;
    let service = open_existing(&args.service).await?;
    let found = look_up(&service, &args, authored, source).await;
    service.close().await;
    let found = found?;
    if args.json {
        say!("{}", json!({ "points": found }));
        return Ok(());
    }
    for (i, ExplainedCachePoint { after, fingerprint, hit, why }) in found.iter().enumerate() {
        let word = if *hit { "hit" } else { "miss" };
        say!("point {i} after `{after}` ({}): {word}", short(fingerprint));
        for line in why {
            say!("  {line}");
        }
    }
    Ok(())
}

async fn look_up(
    service: &ServiceConnection,
    args: &CacheExplainArgs,
    authored: AuthoredPipeline,
    source: DatasetLocation,
) -> Result<Vec<ExplainedCachePoint>, ProgramFailure> {
    let OrderedPipeline { authored, .. } = authored.ordered(&source, &args.order).await?;
    let pipeline = &authored.pipeline;
    let DatasetListing { dataset, left_out } = service.list(pipeline, source).await?;
    if !left_out.is_empty() {
        gristmill_client::complain!("{left_out}");
    }
    let spec = JobSpec {
        seed: args.seed,
        settings: JobSettings { on_error: ErrorPolicy::Skip, ..JobSettings::default() },
        numerics: authored.numerics(0, service.local.is_some()),
        ..JobSpec::new(pipeline.canonical_json())
    };
    Ok(call(service, CacheExplainCall { spec, dataset }).await?.points)
}

async fn remove(args: CacheRemoveArgs) -> Result<(), ProgramFailure> {
    let service = open_existing(&args.service).await?;
    let removed = remove_named(&service, &args).await;
    service.close().await;
    let Removed { entries, objects, bytes } = removed?;
    if args.json {
        say!("{}", json!({ "removed": entries, "objects": objects, "bytes": bytes }))
    } else {
        say!("removed {entries} entries, {objects} objects, {:.1} MB", bytes as f64 / 1e6)
    }
    Ok(())
}

/// Entries removed from the cache.
#[derive(Default)]
struct Removed {
    entries: usize,
    objects: u64,
    bytes: u64,
}

async fn remove_named(
    service: &ServiceConnection,
    args: &CacheRemoveArgs,
) -> Result<Removed, ProgramFailure> {
    let (listed, removing) = cached(service).await?;
    // An earlier removal may have deleted the entry, and with it the size.
    let mut known: BTreeMap<Fingerprint, u64> = removing.into_iter().map(|f| (f, 0)).collect();
    known.extend(listed.iter().map(|listed| (listed.entry.fingerprint, listed.entry.bytes)));
    if let Some(prefix) = &args.prefix {
        known.retain(|fingerprint, _| fingerprint.to_string().starts_with(prefix));
    }
    match (&args.prefix, known.len()) {
        (Some(prefix), 0) => {
            let advice = "`gristmill cache ls` lists the entries";
            return Err(ProgramFailure::usage(format!(
                "nothing is cached under {prefix}: {advice}"
            )));
        }
        (Some(prefix), found @ 2..) => {
            return Err(ProgramFailure::usage(format!(
                "{prefix} names {found} entries: give more digits"
            )));
        }
        _ => {}
    }
    let mut removed = Removed::default();
    for (fingerprint, bytes) in known {
        let CacheRemoveReply { objects } = call(service, CacheRemoveCall { fingerprint }).await?;
        removed.entries += 1;
        removed.objects += objects;
        removed.bytes += bytes;
    }
    Ok(removed)
}

/// Entries, and unfinished removals.
async fn cached(
    service: &ServiceConnection,
) -> Result<(Vec<ListedCacheEntry>, Vec<Fingerprint>), ProgramFailure> {
    let CacheListReply { mut entries, removing } = call(service, CacheListCall {}).await?;
    entries.sort_by_key(|listed| std::cmp::Reverse(listed.entry.stored_ms));
    Ok((entries, removing))
}

fn short(fingerprint: &Fingerprint) -> String {
    fingerprint.to_string().chars().take(SHOWN_DIGITS).collect()
}

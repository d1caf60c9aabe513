//! `gristmill cache`: what is cached, why something is not found, and its removal.

use crate::output::say;
use crate::{
    args::{CacheArgs, CacheCommand, CacheExplainArgs, CacheListArgs, CacheRemoveArgs},
    attach::Stack,
    failure::Failure,
    job, status,
    train::{optimised, own, parse_source},
};
use gristmill_client::{Authored, Listing, Source};
use gristmill_model::wire::{
    CacheExplain, CacheListed, CacheRemove, Call, JobSpec, PointFound, Reply,
};
use gristmill_model::{ErrorPolicy, Fingerprint};
use serde_json::json;
use std::{collections::BTreeMap, path::Path};

/// Digits of a fingerprint that are shown, and that name it: enough to tell two apart.
const SHOWN_DIGITS: usize = 12;

pub async fn run(args: CacheArgs) -> Result<(), Failure> {
    match args.command {
        CacheCommand::Ls(args) => list(args).await,
        CacheCommand::Explain(args) => explain(args).await,
        CacheCommand::Rm(args) => remove(args).await,
    }
}

async fn list(args: CacheListArgs) -> Result<(), Failure> {
    let stack = Stack::named_or_own(&args.service).await?;
    let listed = cached(&stack).await;
    stack.close().await;
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
    for CacheListed { entry, uses, readers } in &listed {
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

async fn explain(args: CacheExplainArgs) -> Result<(), Failure> {
    let authored = job::read_pipeline(&args.pipeline)?;
    if authored.pipeline.cache_points().is_empty() {
        return Err(Failure::usage(format!(
            "{} has no `autocache`: put one where elements are worth keeping",
            args.pipeline.display()
        )));
    }
    let source = match &args.data {
        Some(data) => parse_source(data, Path::new("."))?,
        None => own(&authored, &args.pipeline)?,
    };
    let stack = Stack::named_or_own(&args.service).await?;
    let found = look_up(&stack, &args, &authored, source).await;
    stack.close().await;
    let found = found?;
    if args.json {
        say!("{}", json!({ "points": found }));
        return Ok(());
    }
    for (i, PointFound { after, fingerprint, hit, why }) in found.iter().enumerate() {
        let word = if *hit { "hit" } else { "miss" };
        say!("point {i} after `{after}` ({}): {word}", short(fingerprint));
        for line in why {
            say!("  {line}");
        }
    }
    Ok(())
}

async fn look_up(
    stack: &Stack,
    args: &CacheExplainArgs,
    authored: &Authored,
    source: Source,
) -> Result<Vec<PointFound>, Failure> {
    let pipeline = optimised(&authored.pipeline);
    let Listing { dataset, .. } = job::dataset(stack, &pipeline, source).await?;
    let spec = JobSpec {
        seed: args.seed,
        on_error: ErrorPolicy::Skip,
        numerics: authored.numerics(0, stack.local.is_some()),
        ..JobSpec::new(pipeline.canonical_json())
    };
    match status::call(stack, &Call::CacheExplain(CacheExplain { spec, dataset })).await? {
        Reply::Explained { points } => Ok(points),
        other => Err(status::unexpected(&other)),
    }
}

async fn remove(args: CacheRemoveArgs) -> Result<(), Failure> {
    let stack = Stack::named_or_own(&args.service).await?;
    let removed = remove_named(&stack, &args).await;
    stack.close().await;
    let Removed { entries, objects, bytes } = removed?;
    match args.json {
        true => say!("{}", json!({ "removed": entries, "objects": objects, "bytes": bytes })),
        false => say!("removed {entries} entries, {objects} objects, {:.1} MB", bytes as f64 / 1e6),
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

async fn remove_named(stack: &Stack, args: &CacheRemoveArgs) -> Result<Removed, Failure> {
    let (listed, removing) = cached(stack).await?;
    // An earlier removal may have deleted the entry, and with it the size.
    let mut known: BTreeMap<Fingerprint, u64> = removing.into_iter().map(|f| (f, 0)).collect();
    known.extend(listed.iter().map(|listed| (listed.entry.fingerprint, listed.entry.bytes)));
    if let Some(prefix) = &args.prefix {
        known.retain(|fingerprint, _| fingerprint.to_string().starts_with(prefix));
    }
    match (&args.prefix, known.len()) {
        (Some(prefix), 0) => {
            let advice = "`gristmill cache ls` lists what is";
            return Err(Failure::usage(format!("nothing is cached under {prefix}: {advice}")));
        }
        (Some(prefix), found @ 2..) => {
            return Err(Failure::usage(format!(
                "{prefix} names {found} entries: give more digits"
            )));
        }
        _ => {}
    }
    let mut removed = Removed::default();
    for (fingerprint, bytes) in known {
        match status::call(stack, &Call::CacheRemove(CacheRemove { fingerprint })).await? {
            Reply::Removed { objects } => {
                removed.entries += 1;
                removed.objects += objects;
                removed.bytes += bytes;
            }
            other => return Err(status::unexpected(&other)),
        }
    }
    Ok(removed)
}

/// Entries, and what is being removed.
async fn cached(stack: &Stack) -> Result<(Vec<CacheListed>, Vec<Fingerprint>), Failure> {
    match status::call(stack, &Call::CacheList).await? {
        Reply::Cached { mut entries, removing } => {
            entries.sort_by_key(|listed| std::cmp::Reverse(listed.entry.stored_ms));
            Ok((entries, removing))
        }
        other => Err(status::unexpected(&other)),
    }
}

fn short(fingerprint: &Fingerprint) -> String {
    fingerprint.to_string().chars().take(SHOWN_DIGITS).collect()
}

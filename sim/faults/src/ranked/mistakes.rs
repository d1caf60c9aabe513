//! Bugs of training with several ranks, put into what a coordinator reads or what a fetcher sends.

use crate::Mutant;
use bytes::Bytes;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_model::splits::readers::ReaderProgress;
use gristmill_model::splits::run::PastRuns;
use gristmill_model::splits::{JobProgress, SplitPlace};
use gristmill_model::wire::{AnyCall, PollCall};
use gristmill_ports::{ItemKey, TableItem};
use serde::{Serialize, de::DeserializeOwned};
use std::num::NonZeroU32;

/// The items that a coordinator with the bug believes to have read.
pub fn read(
    mutant: Option<Mutant>,
    keys: &[ItemKey],
    mut items: Vec<Option<TableItem>>,
) -> Vec<Option<TableItem>> {
    if mutant == Some(Mutant::PastTokenLetIn) {
        for (key, item) in keys.iter().zip(&mut items) {
            if let Some(item) = item.as_mut().filter(|_| key.sk.starts_with("C#")) {
                change(item, |job: &mut JobProgress| job.past = PastRuns::default());
            }
        }
    }
    items
}

/// The reports of readers that a coordinator with the bug believes to have read; `job` is the stored
/// progress.
pub fn ranged(
    mutant: Option<Mutant>,
    job: Option<&TableItem>,
    mut found: Vec<(String, TableItem)>,
) -> Vec<(String, TableItem)> {
    let of_merge =
        [Mutant::MergesAnyGeneration, Mutant::MissingReaderIsDone, Mutant::GreatestForLeast];
    if mutant.is_none_or(|mutant| !of_merge.contains(&mutant)) {
        return found;
    }
    let Some(job) = job.and_then(|job| serde_json::from_slice::<JobProgress>(&job.body).ok())
    else {
        return found;
    };
    let reports = || {
        let of = |(_, item): &(String, TableItem)| serde_json::from_slice(&item.body).ok();
        found.iter().filter_map(of).collect::<Vec<ReaderProgress>>()
    };
    let of_run = reports().into_iter().filter(|report| report.generation == job.generation);
    let (greatest, delivered) =
        of_run.fold((None, SplitPlace::default()), |(cursor, place), report| {
            let of = (report.durable, report.durable_place);
            (cursor.max(Some(of)), place.max(report.delivered))
        });
    let end = job.run.map_or(1, |run| run.ranks.count.get());
    let firsts: Vec<u32> = reports().iter().map(|report| report.ranks.first).collect();
    for (sk, item) in &mut found {
        if !sk.starts_with("R#") {
            continue;
        }
        change(item, |report: &mut ReaderProgress| match mutant {
            Some(Mutant::MergesAnyGeneration) => report.generation = job.generation,
            Some(Mutant::MissingReaderIsDone) => {
                let first = report.ranks.first;
                let next = firsts.iter().copied().filter(|other| *other > first).min();
                let count = next.unwrap_or(end).saturating_sub(first);
                report.ranks.count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
            }
            Some(Mutant::GreatestForLeast) if report.generation == job.generation => {
                if let Some((durable, place)) = greatest {
                    (report.durable, report.durable_place) = (durable, place);
                    report.delivered = delivered;
                }
            }
            _ => {}
        });
    }
    found
}

/// The call as a fetcher sends it that lets each rank decide on its last batches.
pub fn called(mutant: Option<Mutant>, call: &mut AnyCall) {
    if let (Some(Mutant::TailPerRank), AnyCall::Poll(PollCall { join: Some(join), .. })) =
        (mutant, call)
    {
        join.run.ranks.tail = TailPolicy::Drop;
    }
}

fn change<T: Serialize + DeserializeOwned>(item: &mut TableItem, with: impl FnOnce(&mut T)) {
    if let Ok(mut decoded) = serde_json::from_slice::<T>(&item.body) {
        with(&mut decoded);
        if let Ok(body) = serde_json::to_vec(&decoded) {
            item.body = Bytes::from(body);
        }
    }
}

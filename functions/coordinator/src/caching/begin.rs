//! Registration: which `autocache` points a pipeline has, and which of them are already cached.

use super::{
    JobCaching,
    catalogue::{self, UsedCacheEntry},
};
use crate::{
    CallHandler, Jobs,
    items::{ItemName, JobItem},
    jobs::pipeline_of,
};
use gristmill_model::splits::epoch::SealedTotals;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CacheEntry, CacheExplainCall, CacheExplainReply, CachePointView, CallRefusal, Dataset,
    EpochCacheMode, ExplainedCachePoint, JobSpec,
};
use gristmill_model::{ErrorPolicy, Fingerprint, JobName};
use gristmill_pipeline::{CachePoint, Pipeline};
use gristmill_policy::caching::{
    self, CacheCandidate, CacheLookup, CacheMiss, Mode, PrefixDescription, SourceVersion,
    explain_miss,
};

/// Most files that are described one by one, so that a miss can name the changed ones. A larger dataset is
/// described by its version only.
const MAX_FILES_DESCRIBED: usize = 1_000;

/// Longest explanation of a miss that a job keeps; `gristmill cache explain` prints all of it.
const MAX_REASON_CHARS: usize = 400;

/// A job to look up in the cache, and what its fingerprints depend on.
pub(crate) struct CacheQuery<'a> {
    pub spec: &'a JobSpec,
    pub pipeline: &'a Pipeline,
    pub dataset: &'a Dataset,
    pub version: Fingerprint,
    pub numerics: &'a str,
    /// Records of a split; none before the dataset is indexed.
    pub split_records: Option<u32>,
}

/// A point with the entry of its fingerprint, or the reason why this job cannot read it, if known.
struct Found {
    view: CachePointView,
    entry: Result<CacheEntry, Option<String>>,
}

impl<'a> CacheQuery<'a> {
    /// The query of a job that exists, for its points alone.
    fn from_item(
        item: &'a JobItem,
        pipeline: &'a Pipeline,
        dataset: &'a Dataset,
        numerics: &'a str,
    ) -> Self {
        let version = item.dataset_version;
        Self { spec: &item.spec, pipeline, dataset, version, numerics, split_records: None }
    }

    fn points(&self) -> Vec<(CachePoint, CachePointView)> {
        let points = self.pipeline.cache_points().into_iter();
        points.map(|point| (point.clone(), self.view(&point))).collect()
    }

    fn view(&self, point: &CachePoint) -> CachePointView {
        let CacheQuery { spec, pipeline, version, numerics, .. } = self;
        CachePointView {
            after: point.after.clone(),
            fingerprint: pipeline.point_fingerprint(point, version, numerics, spec.seed),
            random: point.random,
            reuse_random: point.reuse_random,
            whole: point.whole,
        }
    }

    /// Everything that determines a point's fingerprint.
    pub fn described(&self, point: &CachePoint) -> PrefixDescription {
        let Dataset { files, .. } = self.dataset;
        let listed = if files.len() <= MAX_FILES_DESCRIBED { files.as_slice() } else { &[] };
        let files = listed.iter().map(|file| SourceVersion {
            key: file.key.clone(),
            etag: format!("{} {}", file.etag, file.size),
        });
        let (seed, numerics) = (self.spec.seed, self.numerics);
        PrefixDescription::new(self.pipeline, point, self.version, files.collect(), numerics, seed)
    }

    /// Why this job cannot use the entry; none if it can.
    fn objection(&self, entry: &CacheEntry) -> Option<String> {
        let copies = self.spec.copies();
        if entry.copies != copies {
            return Some(format!("it holds the dataset {} times, not {copies}", entry.copies));
        }
        let cached = entry.split_records;
        let Some(own) = self.split_records else {
            return Some(
                "the dataset has no index, which decides the splits of this job".to_owned(),
            );
        };
        if own != cached {
            let batch_size = self.pipeline.batch_size().max(1);
            let remedy = match cached % batch_size {
                0 => format!(": `--split-batches {}` reads it", cached / batch_size),
                _ => String::new(),
            };
            return Some(format!(
                "it has splits of {cached} records, and this job has splits of {own}{remedy}"
            ));
        }
        if entry.skipped > 0 && self.spec.settings.on_error == ErrorPolicy::Fail {
            let skipped = entry.skipped;
            return Some(format!("it lacks {skipped} bad records, for which this job must fail"));
        }
        None
    }
}

impl CallHandler<CacheExplainCall> for Jobs {
    async fn handle(&self, asked: &CacheExplainCall) -> Result<CacheExplainReply, CallRefusal> {
        let CacheExplainCall { spec, dataset } = asked;
        let pipeline = pipeline_of(spec)?;
        let version = dataset.version(&pipeline.source().stored_as());
        let numerics = self.numerics_of(spec).await?;
        let plan = self.plan(spec, &pipeline, version).await?;
        let split_records = plan.map(|plan| plan.split_records);
        let numerics = numerics.as_str();
        let query =
            CacheQuery { spec, pipeline: &pipeline, dataset, version, numerics, split_records };
        let found = self.find_cached(&query).await?;
        let whys = self.why_missed(&query, &found).await?;
        let points = found.into_iter().zip(whys).map(|(Found { view, entry }, missed)| {
            let CachePointView { after, fingerprint, .. } = view;
            let hit = |CacheEntry { job, splits, bytes, .. }: &CacheEntry| {
                format!("stored by job {job}: {splits} splits, {bytes} bytes")
            };
            let why = entry.as_ref().map_or(missed, |entry| vec![hit(entry)]);
            ExplainedCachePoint { after, fingerprint, hit: entry.is_ok(), why }
        });
        Ok(CacheExplainReply { points: points.collect() })
    }
}

impl Jobs {
    /// The caching state of a new job; none without `autocache` points.
    pub(crate) async fn begin_caching(
        &self,
        job: &JobName,
        query: &CacheQuery<'_>,
    ) -> Result<Option<JobCaching>, CallRefusal> {
        if query.pipeline.cache_points().is_empty() {
            return Ok(None);
        }
        let remembered = self.numerics_of(query.spec).await?;
        let query = CacheQuery { numerics: &remembered, ..*query };
        let found = self.find_cached(&query).await?;
        let CacheLookup { mode, reason } = look_up(&found);
        if let Mode::Get { point } = mode
            && let Some(Found { entry: Ok(entry), .. }) = found.get(point as usize)
            && self.reads_cache(job, entry).await?
        {
            return Ok(Some(reading(&query, &found, point, entry, &reason)));
        }
        let reason = match mode {
            // Finish the removal here, so that other jobs can find what this job stores.
            Mode::Get { point } => {
                if let Some(found) = found.get(point as usize) {
                    let until_ms = self.objects.in_time_of_a_call();
                    self.finish_begun_removal(found.view.fingerprint, until_ms).await?;
                }
                "the cached entry is being removed".to_owned()
            }
            Mode::Profile => {
                let whys = self.why_missed(&query, &found).await?;
                // Explain the point with the fewest differences to a cached one; on a tie, the last.
                let nearest = whys.into_iter().rev().min_by_key(Vec::len);
                nearest.map_or(reason, |why| why.join(", "))
            }
            _ => reason,
        };
        let mode = if mode == Mode::Compute { Mode::Compute } else { Mode::Profile };
        Ok(Some(self.fresh_caching(&query, mode, reason)))
    }

    /// The caching state of a job that has no cache to read.
    pub(crate) fn fresh_caching(
        &self,
        query: &CacheQuery<'_>,
        mode: Mode,
        reason: String,
    ) -> JobCaching {
        let points: Vec<CachePointView> =
            query.points().into_iter().map(|(_, view)| view).collect();
        let whole = points.iter().find(|point| point.whole).filter(|_| mode == Mode::Profile);
        let cache_prefix = whole.map(|point| self.build_prefix(point.fingerprint));
        // The reason is part of every poll's answer, so it must stay short.
        let reason = reason.chars().take(MAX_REASON_CHARS).collect();
        let first = EpochCacheMode { from: 0, mode, reason, cache_prefix };
        JobCaching::new(points, first, query.numerics)
    }

    /// A cache prefix that only this job writes to.
    pub(super) fn build_prefix(&self, fingerprint: Fingerprint) -> String {
        keys::build_prefix(&self.records.settings.ns, fingerprint, self.records.clock.nonce())
    }

    async fn find_cached(&self, query: &CacheQuery<'_>) -> Result<Vec<Found>, CallRefusal> {
        let mut found = Vec::new();
        for (point, view) in query.points() {
            let readable = !point.random || point.reuse_random;
            let entry = if readable { self.readable_entry(view.fingerprint).await? } else { None };
            let entry = entry.ok_or(None).and_then(|entry| match query.objection(&entry) {
                None => Ok(entry),
                objection => Err(objection),
            });
            found.push(Found { view, entry });
        }
        Ok(found)
    }

    /// For each point, why it was not found: one line per difference.
    async fn why_missed(
        &self,
        query: &CacheQuery<'_>,
        found: &[Found],
    ) -> Result<Vec<Vec<String>>, CallRefusal> {
        let cached = self.cached().await?;
        let entries: Vec<caching::CachedPrefix> =
            cached.iter().map(UsedCacheEntry::as_entry).collect();
        let points = query.pipeline.cache_points();
        let why = |(point, found): (&CachePoint, &Found)| match &found.entry {
            Ok(_) => Vec::new(),
            Err(Some(objection)) => vec![objection.clone()],
            Err(None) => match explain_miss(&query.described(point), &entries) {
                None => vec!["nothing is cached".to_owned()],
                Some(CacheMiss { nearest, differences }) => {
                    let name: String = nearest.to_string().chars().take(12).collect();
                    let lines = differences.iter().map(|d| format!("beside {name}: {d}"));
                    lines.collect()
                }
            },
        };
        Ok(points.iter().zip(found).map(why).collect())
    }

    /// Recomputes a job's points once its numerics class is known. No split has been handed out yet.
    pub(crate) async fn settle_points(
        &self,
        item: &JobItem,
        numerics: &str,
    ) -> Result<Option<JobCaching>, CallRefusal> {
        let Some(caching) = item.caching.as_ref().filter(|c| c.numerics != numerics) else {
            return Ok(item.caching.clone());
        };
        let pipeline = pipeline_of(&item.spec)?;
        let dataset = Dataset::one("", Vec::new());
        let query = CacheQuery::from_item(item, &pipeline, &dataset, numerics);
        let reason = match caching.state.mode {
            Mode::Get { .. } => format!("the cached entry has numerics class {}", caching.numerics),
            _ => caching.view.modes.first().map(|mode| mode.reason.clone()).unwrap_or_default(),
        };
        let mode = if caching.state.mode == Mode::Compute { Mode::Compute } else { Mode::Profile };
        Ok(Some(self.fresh_caching(&query, mode, reason)))
    }

    /// Everything that determines a point's fingerprint, as JSON, to explain later misses.
    pub(super) async fn describe_point(
        &self,
        item: &JobItem,
        numerics: &str,
        fingerprint: Fingerprint,
    ) -> Result<Option<serde_json::Value>, CallRefusal> {
        let pipeline = pipeline_of(&item.spec)?;
        let manifest = self.manifest(item.dataset_version).await?;
        let files = manifest.map(|manifest| manifest.files).unwrap_or_default();
        let files = files.into_iter().map(|indexed| indexed.file).collect();
        let dataset = Dataset::one("", files);
        let query = CacheQuery::from_item(item, &pipeline, &dataset, numerics);
        let mut points = query.points().into_iter();
        let point = points.find(|(_, view)| view.fingerprint == fingerprint);
        Ok(point.and_then(|(point, _)| serde_json::to_value(query.described(&point)).ok()))
    }

    /// The numerics class to look a job up with: its own, or else that of this namespace's workers.
    async fn numerics_of(&self, spec: &JobSpec) -> Result<String, CallRefusal> {
        match spec.numerics.as_str() {
            "" => Ok(self.records.store.read(&ItemName::Numerics).await?.item.unwrap_or_default()),
            known => Ok(known.to_owned()),
        }
    }

    /// Remembers the numerics class of this namespace's workers.
    pub(crate) async fn remember_numerics(&self, numerics: &str) -> Result<(), CallRefusal> {
        let seen = |known: &mut String| numerics.clone_into(known);
        self.records.store.change_or_create(&ItemName::Numerics, seen).await.map(|_| ())
    }
}

fn look_up(found: &[Found]) -> CacheLookup {
    let candidates: Vec<CacheCandidate> = found
        .iter()
        .map(|Found { view, .. }| CacheCandidate {
            fingerprint: view.fingerprint,
            reusable: !view.random || view.reuse_random,
            whole: view.whole,
        })
        .collect();
    let entries = found.iter().filter_map(|found| found.entry.as_ref().ok());
    let catalogue: Vec<caching::CachedPrefix> = entries.map(catalogue::entry_of).collect();
    caching::lookup(&candidates, &catalogue)
}

/// The caching state of a job that reads an existing entry from the start.
fn reading(
    query: &CacheQuery<'_>,
    found: &[Found],
    point: u32,
    entry: &CacheEntry,
    reason: &str,
) -> JobCaching {
    let first = EpochCacheMode {
        from: 0,
        mode: Mode::Get { point },
        reason: format!("stored by job {}; {reason}", entry.job),
        cache_prefix: Some(entry.cache_prefix.clone()),
    };
    let points = found.iter().map(|found| found.view.clone()).collect();
    let totals = SealedTotals {
        splits: entry.splits,
        rows: entry.rows,
        skipped: entry.skipped,
        object_bytes: entry.bytes,
        ..SealedTotals::default()
    };
    JobCaching { totals: Some(totals), ..JobCaching::new(points, first, query.numerics) }
}

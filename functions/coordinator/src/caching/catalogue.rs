//! The cache: entries, their readers, their size, and their removal.

use crate::{
    CallHandler, Jobs,
    files::DeletedObjects,
    files::object_fault,
    items::{ItemName, JobItem},
    store::{ItemUpdateError, busy, decode, invalid, unless_declined},
};
use gristmill_model::splits::TransitionOutcome;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CacheEntry, CacheListCall, CacheListReply, CacheRemoveCall, CacheRemoveReply, CallRefusal,
    ListedCacheEntry, RefusalKind,
};
use gristmill_model::{Fingerprint, JobName};
use gristmill_policy::caching::{self, Mode, UseScore, evict};
use gristmill_ports::{ObjectError, ObjectPath};
use serde::{Deserialize, Serialize};

/// Number of readers from which ended jobs are dropped when another reader is added.
const MANY_READERS: usize = 256;
/// After this many seconds, a registration that has not created its job has died.
const REGISTERING_S: f64 = 300.0;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CacheUse {
    /// The cache prefix being removed; no job may begin to read it. Any process that finds this finishes the removal.
    pub removing: Option<String>,
    pub uses: UseScore,
    /// Jobs that read the entry, including some that have ended.
    pub readers: Vec<JobName>,
}

/// An entry with its use, and its readers that have not ended.
pub(crate) struct UsedCacheEntry {
    pub entry: CacheEntry,
    pub used: CacheUse,
    /// Readers that have not ended.
    pub readers: Vec<JobName>,
}

impl UsedCacheEntry {
    /// The entry in the policy's form.
    pub fn as_entry(&self) -> caching::CachedPrefix {
        let leased = !self.readers.is_empty();
        caching::CachedPrefix { uses: self.used.uses, leased, ..entry_of(&self.entry) }
    }
}

/// An unused entry in the policy's form.
pub(crate) fn entry_of(entry: &CacheEntry) -> caching::CachedPrefix {
    let described = entry.described.clone();
    caching::CachedPrefix {
        fingerprint: entry.fingerprint,
        bytes: entry.bytes as f64,
        elements_per_s: entry.elements_per_s,
        saved_s: entry.saved_s,
        uses: UseScore::stored(entry.stored_ms as f64 / 1e3),
        leased: false,
        described: described.and_then(|json| serde_json::from_value(json).ok()),
    }
}

impl Jobs {
    pub(crate) async fn cache_entry(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Option<CacheEntry>, CallRefusal> {
        self.objects.read_json(self.entry_key(fingerprint), "an entry").await
    }

    fn entry_key(&self, fingerprint: Fingerprint) -> String {
        keys::cache_entry(&self.records.settings.ns, fingerprint)
    }

    fn now_s(&self) -> f64 {
        self.records.clock.now_ms() as f64 / 1e3
    }

    /// As [`Self::cache_entry`], if a job can read what it names. An entry whose manifest is gone is removed, so that
    /// another can be stored: the manifest was put before it.
    pub(crate) async fn readable_entry(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Option<CacheEntry>, CallRefusal> {
        let Some(entry) = self.cache_entry(fingerprint).await? else { return Ok(None) };
        if !entry.whole {
            return Ok(Some(entry));
        }
        let manifest = keys::cache_manifest(&entry.cache_prefix);
        let path = ObjectPath::new(&self.records.settings.bucket, manifest);
        match self.objects.store.get(&path).await {
            Ok(_) => Ok(Some(entry)),
            Err(ObjectError::NotFound(path)) => {
                tracing::warn!(%path, "a cached epoch has lost its manifest: its entry is removed");
                self.objects.delete_objects(&[self.entry_key(fingerprint)]).await?;
                Ok(None)
            }
            Err(error) => Err(object_fault(&error)),
        }
    }

    /// Puts an entry unless its fingerprint has one; returns the entry that is stored then.
    pub(crate) async fn publish(&self, entry: &CacheEntry) -> Result<CacheEntry, CallRefusal> {
        let key = self.entry_key(entry.fingerprint);
        // An earlier try or another job may have stored one: the stored entry counts.
        self.objects.put_json(key.clone(), entry, &entry.cache_prefix).await?;
        let there = self.cache_entry(entry.fingerprint).await?;
        there.ok_or_else(|| busy(format!("{key} was removed as soon as it was put")))
    }

    /// Adds `job` to the readers of an entry. Returns false if the entry is being removed or is gone.
    pub(crate) async fn reads_cache(
        &self,
        job: &JobName,
        entry: &CacheEntry,
    ) -> Result<bool, CallRefusal> {
        let CacheEntry { fingerprint, cache_prefix, .. } = entry;
        let now_s = self.now_s();
        let usage = self.usage(entry.clone()).await?;
        let ended: Vec<&JobName> = match usage.used.readers.len() {
            0..MANY_READERS => Vec::new(),
            _ => usage.used.readers.iter().filter(|job| !usage.readers.contains(job)).collect(),
        };
        let decide = |before: Option<&CacheUse>| {
            let mut used = before.cloned().unwrap_or_default();
            if used.removing.as_ref() == Some(cache_prefix) {
                return Err(ItemUpdateError::Declined(()));
            }
            // The mark belongs to an earlier cache prefix, whose entry and objects are gone.
            let unfinished = used.removing.take().is_some();
            if used.readers.contains(job) && !unfinished {
                return Ok(TransitionOutcome::AlreadyApplied(used));
            }
            used.readers.retain(|reader| !ended.contains(&reader) && reader != job);
            used.readers.push(job.clone());
            used.uses = used.uses.used(now_s);
            Ok(TransitionOutcome::Write(used))
        };
        let noted = self.records.store.update(&ItemName::CacheUse(*fingerprint), decide).await;
        if unless_declined(noted)?.is_none() {
            return Ok(false);
        }
        // The entry may have been removed after it was found and before the reader was added.
        let there = self.cache_entry(*fingerprint).await?;
        Ok(there.is_some_and(|there| there.cache_prefix == *cache_prefix))
    }

    pub(crate) async fn cached(&self) -> Result<Vec<UsedCacheEntry>, CallRefusal> {
        let ns = &self.records.settings.ns;
        let mut cached = Vec::new();
        for object in self.objects.list_objects(&keys::cache_entries(ns)).await? {
            let Some(fingerprint) = keys::parse_cache_entry(ns, &object.key) else { continue };
            if let Some(entry) = self.cache_entry(fingerprint).await? {
                cached.push(self.usage(entry).await?);
            }
        }
        Ok(cached)
    }

    async fn usage(&self, entry: CacheEntry) -> Result<UsedCacheEntry, CallRefusal> {
        let name = ItemName::CacheUse(entry.fingerprint);
        let used = self.records.store.read::<CacheUse>(&name).await?.item.unwrap_or_default();
        let now_s = self.now_s();
        let mut readers = Vec::new();
        for job in &used.readers {
            let lives = match self.records.store.read::<JobItem>(&ItemName::Job(job)).await?.item {
                Some(item) => !item.state.is_ended(),
                // A job is added as a reader before its item is written.
                None => now_s - used.uses.at_s < REGISTERING_S,
            };
            if lives {
                readers.push(job.clone());
            }
        }
        Ok(UsedCacheEntry { entry, used, readers })
    }

    /// Evicts the least useful entries until `bytes` more fit. Returns the reason if they cannot.
    pub(crate) async fn make_room(&self, bytes: f64) -> Result<Option<String>, CallRefusal> {
        let cached = self.cached().await?;
        let entries: Vec<caching::CachedPrefix> =
            cached.iter().map(UsedCacheEntry::as_entry).collect();
        let capacity = self.records.settings.cache_bytes as f64;
        let doomed = match evict(&entries, capacity, bytes, self.now_s()) {
            Ok(doomed) => doomed,
            Err(no_room) => return Ok(Some(no_room.to_string())),
        };
        for usage in cached.iter().filter(|usage| doomed.contains(&usage.entry.fingerprint)) {
            if self.remove_entry(usage).await?.is_none() {
                return Ok(Some("what would make room began to be read".to_owned()));
            }
        }
        Ok(None)
    }

    /// Removes an entry and returns its number of objects; none if a job has begun to read it since. First
    /// marks it, so that no job begins to read it; then any process that finds the mark can finish.
    async fn remove_entry(&self, usage: &UsedCacheEntry) -> Result<Option<u64>, CallRefusal> {
        let UsedCacheEntry { entry, used: seen, .. } = usage;
        let name = ItemName::CacheUse(entry.fingerprint);
        let removing = |before: Option<&CacheUse>| {
            let used = before.cloned().unwrap_or_default();
            if !used.readers.iter().all(|reader| seen.readers.contains(reader)) {
                return Err(ItemUpdateError::Declined(()));
            }
            // The next entry of this fingerprint starts with no uses.
            let removing = Some(entry.cache_prefix.clone());
            Ok(TransitionOutcome::Write(CacheUse { removing, ..CacheUse::default() }))
        };
        if unless_declined(self.records.store.update(&name, removing).await)?.is_none() {
            return Ok(None);
        }
        let until_ms = self.objects.in_time_of_a_call();
        self.finish_removal(entry.fingerprint, &entry.cache_prefix, until_ms).await.map(Some)
    }

    /// Removes the marked cache prefix and returns its number of objects. Deletes objects first and the entry
    /// last, so that a later round finds an interrupted removal; repeating any step is safe. Refused as
    /// busy if there are more objects than `until_ms` gives time for.
    async fn finish_removal(
        &self,
        fingerprint: Fingerprint,
        cache_prefix: &str,
        until_ms: u64,
    ) -> Result<u64, CallRefusal> {
        let DeletedObjects { objects, all } =
            self.objects.delete_below(cache_prefix, until_ms, |_| true).await?;
        if !all {
            let text = format!("{objects} objects of {fingerprint} are deleted, and more remain");
            return Err(busy(text));
        }
        let of_prefix = |entry: CacheEntry| entry.cache_prefix == cache_prefix;
        if self.cache_entry(fingerprint).await?.is_some_and(of_prefix) {
            self.objects.delete_objects(&[self.entry_key(fingerprint)]).await?;
        }
        let unmark = |used: &mut CacheUse| {
            used.removing.take_if(|removing| removing == cache_prefix);
        };
        self.records.store.change_or_create(&ItemName::CacheUse(fingerprint), unmark).await?;
        tracing::info!(%fingerprint, objects, "removed from the cache");
        Ok(objects)
    }

    /// Finishes a removal that was begun under `fingerprint`; returns its number of objects.
    pub(crate) async fn finish_begun_removal(
        &self,
        fingerprint: Fingerprint,
        until_ms: u64,
    ) -> Result<Option<u64>, CallRefusal> {
        let name = ItemName::CacheUse(fingerprint);
        let used = self.records.store.read::<CacheUse>(&name).await?.item;
        let Some(cache_prefix) = used.and_then(|used| used.removing) else { return Ok(None) };
        self.finish_removal(fingerprint, &cache_prefix, until_ms).await.map(Some)
    }

    /// Fingerprints whose removal was begun and not finished.
    pub(crate) async fn being_removed(&self) -> Result<Vec<Fingerprint>, CallRefusal> {
        let mut found = Vec::new();
        let pk = keys::cache_partition(&self.records.settings.ns);
        for (sk, item) in self.records.store.read_partition(&pk).await? {
            let Ok(fingerprint) = sk.parse::<Fingerprint>() else { continue };
            let read = decode::<CacheUse>(&ItemName::CacheUse(fingerprint), Some(&item))?;
            if read.item.is_some_and(|used| used.removing.is_some()) {
                found.push(fingerprint);
            }
        }
        Ok(found)
    }

    /// Deletes cache prefixes that a job wrote and no job can read: of a put that did not finish, or lost the race
    /// for the entry.
    pub(crate) async fn tidy_cache_prefixes(
        &self,
        caching: Option<&super::JobCaching>,
        until_ms: u64,
    ) -> Result<DeletedObjects, CallRefusal> {
        let mut deleted = DeletedObjects { objects: 0, all: true };
        let Some(caching) = caching else { return Ok(deleted) };
        let whole = || caching.view.points.iter().find(|point| point.whole);
        for mode in &caching.view.modes {
            let Some(cache_prefix) = &mode.cache_prefix else { continue };
            let point = match mode.mode {
                Mode::Profile | Mode::Compute => whole(),
                Mode::Put { point } => caching.view.points.get(point as usize),
                // The job that wrote this cache prefix cleans it up.
                Mode::Get { .. } => None,
            };
            let Some(point) = point else { continue };
            let entry = self.cache_entry(point.fingerprint).await?;
            if deleted.all && entry.is_none_or(|entry| entry.cache_prefix != *cache_prefix) {
                let more = self.objects.delete_below(cache_prefix, until_ms, |_| true).await?;
                deleted = deleted.and(more);
            }
        }
        Ok(deleted)
    }
}

impl CallHandler<CacheListCall> for Jobs {
    async fn handle(&self, _: &CacheListCall) -> Result<CacheListReply, CallRefusal> {
        let now_s = self.now_s();
        let entries = self.cached().await?.into_iter().map(|usage| {
            let uses = usage.as_entry().uses.at(now_s);
            ListedCacheEntry { entry: usage.entry, uses, readers: usage.readers }
        });
        Ok(CacheListReply { entries: entries.collect(), removing: self.being_removed().await? })
    }
}

impl CallHandler<CacheRemoveCall> for Jobs {
    async fn handle(&self, call: &CacheRemoveCall) -> Result<CacheRemoveReply, CallRefusal> {
        let CacheRemoveCall { fingerprint } = call;
        let until_ms = self.objects.in_time_of_a_call();
        if let Some(objects) = self.finish_begun_removal(*fingerprint, until_ms).await? {
            return Ok(CacheRemoveReply { objects });
        }
        let Some(entry) = self.cache_entry(*fingerprint).await? else {
            let message = format!("nothing is cached under {fingerprint}");
            return Err(CallRefusal { kind: RefusalKind::NotFound, message });
        };
        let usage = self.usage(entry).await?;
        if let Some(reader) = usage.readers.first() {
            return Err(invalid(format!(
                "job {reader} reads this entry: stop the job first (`gristmill stop {reader}`), \
                 or wait for its end"
            )));
        }
        match self.remove_entry(&usage).await? {
            Some(objects) => Ok(CacheRemoveReply { objects }),
            None => Err(busy(format!("a job has begun to read {fingerprint}"))),
        }
    }
}

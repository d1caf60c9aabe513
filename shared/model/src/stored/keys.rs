//! Names of objects in the bucket and of items that functions share in the table. Every key starts
//! with its namespace, so that a role or a bucket policy can be scoped to one.

use crate::{
    Attempt, BundleIndex, Epoch, Fingerprint, JobName, Namespace, Nonce, Position, RecordKey,
};

/// Everything a namespace owns.
fn root(ns: &Namespace) -> String {
    format!("t/{ns}")
}

/// All objects of all jobs' chunks.
pub fn jobs_prefix(ns: &Namespace) -> String {
    format!("{}/jobs/", root(ns))
}

/// All objects of a job's chunks.
pub fn job_prefix(ns: &Namespace, job: &JobName) -> String {
    format!("{}{job}/", jobs_prefix(ns))
}

/// All attempts at the splits of one bundle.
pub fn bundle_prefix(ns: &Namespace, job: &JobName, epoch: Epoch, bundle: BundleIndex) -> String {
    format!("{}e{epoch:06}/b{bundle:08}/", job_prefix(ns, job))
}

/// Everything that is cached.
pub fn cache_prefix(ns: &Namespace) -> String {
    format!("{}/cache/", root(ns))
}

/// The entries of complete cached prefixes.
pub fn cache_entries(ns: &Namespace) -> String {
    format!("{}entries/", cache_prefix(ns))
}

/// The entry of one prefix.
pub fn cache_entry(ns: &Namespace, prefix: Fingerprint) -> String {
    format!("{}{prefix}.json", cache_entries(ns))
}

/// The fingerprint of a key that [`cache_entry`] made; none for any other.
pub fn parse_cache_entry(ns: &Namespace, key: &str) -> Option<Fingerprint> {
    key.strip_prefix(&cache_entries(ns))?.strip_suffix(".json")?.parse().ok()
}

/// The key prefix below which one job stores the output of a pipeline's prefix: a concurrent job has a `build` of its own.
pub fn build_prefix(ns: &Namespace, prefix: Fingerprint, build: Nonce) -> String {
    format!("{}{prefix}/{build}/", cache_prefix(ns))
}

/// All attempts at the splits of one bundle below a cache prefix.
pub fn cached_bundle(cache_prefix: &str, bundle: BundleIndex) -> String {
    format!("{cache_prefix}b{bundle:08}/")
}

/// The manifest of a cache prefix that holds delivered chunks.
pub fn cache_manifest(cache_prefix: &str) -> String {
    format!("{cache_prefix}manifest.json")
}

/// The output at an inner point of the pipeline for one visit of a split (split x copies + copy).
/// The visit determines the content, so that every worker stores the same.
pub fn cached_split(cache_prefix: &str, visit: u64) -> String {
    format!("{cache_prefix}{visit:010}.gmc")
}

/// One part of [`cached_split`], when that is an index of several parts.
pub fn cached_part(cached_split: &str, part: usize) -> String {
    format!("{cached_split}.{part:04}")
}

/// One attempt at one split. The nonce keeps two attempts, or two runs of one attempt, apart.
pub fn chunk(bundle_prefix: &str, position: Position, attempt: Attempt, nonce: Nonce) -> String {
    format!("{bundle_prefix}{position:08}.{attempt}.{nonce}.gmc")
}

/// The inverse of [`chunk`]; none for any other key.
pub fn parse_chunk(bundle_prefix: &str, key: &str) -> Option<(Position, Attempt, Nonce)> {
    let name = key.strip_prefix(bundle_prefix)?.strip_suffix(".gmc")?;
    let mut parts = name.split('.');
    let (position, attempt, nonce) = (parts.next()?, parts.next()?, parts.next()?);
    let parsed = (position.parse().ok()?, attempt.parse().ok()?, nonce.parse().ok()?);
    parts.next().is_none().then_some(parsed)
}

/// Whether a key names a chunk.
pub fn is_chunk(key: &str) -> bool {
    key.ends_with(".gmc")
}

/// Whether a key names a chunk of a job or of the cache, or a part of one: it is computed again when it is lost or
/// damaged, so a store need not keep it through a power cut.
pub fn is_recomputed(key: &str) -> bool {
    let whole = match key.rsplit_once('.') {
        Some((whole, part)) if part.len() == 4 && part.bytes().all(|b| b.is_ascii_digit()) => whole,
        _ => key,
    };
    is_chunk(whole) && matches!(key.split('/').nth(2), Some("jobs" | "cache"))
}

/// All records of a job that were quarantined or left out.
pub fn quarantine_prefix(ns: &Namespace, job: &JobName) -> String {
    format!("{}/quarantine/{job}/", root(ns))
}

/// Records left out of one split, as JSON lines of [`crate::wire::SkippedRecordLocation`]. They depend on the
/// split, not on the attempt.
pub fn skipped(ns: &Namespace, job: &JobName, epoch: Epoch, position: Position) -> String {
    format!("{}e{epoch:06}-{position:08}.skipped.json", quarantine_prefix(ns, job))
}

/// The epoch of a key that [`skipped`] made; none for any other.
pub fn parse_skipped(prefix: &str, key: &str) -> Option<Epoch> {
    let name = key.strip_prefix(prefix)?.strip_prefix('e')?.strip_suffix(".skipped.json")?;
    name.split_once('-')?.0.parse().ok()
}

/// A raw record kept by the `quarantine` policy.
pub fn quarantined(ns: &Namespace, job: &JobName, key: RecordKey) -> String {
    format!("{}{:08}-{:08}", quarantine_prefix(ns, job), key.file, key.record)
}

/// Prefix of the bucket name of a mounted directory; digits of its path's fingerprint follow.
const MOUNT: &str = "dir-";
const MOUNT_DIGITS: usize = 24;

/// The bucket under which a directory of this machine is mounted, by the fingerprint of its path.
pub fn mount(path: Fingerprint) -> String {
    format!("{MOUNT}{}", &path.to_string()[..MOUNT_DIGITS])
}

/// Whether a bucket is a directory of this machine.
pub fn is_mount(bucket: &str) -> bool {
    bucket.strip_prefix(MOUNT).is_some_and(|digits| {
        digits.len() == MOUNT_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// The index of one source file, by [`crate::wire::SourceFile::fingerprint`] and the format as
/// which it was read: one file may be read as several, such as lines. That of a file on this machine
/// is also named by the file's change stamp.
pub fn index(ns: &Namespace, file: Fingerprint, format: &str, stamp: Option<&str>) -> String {
    let stamp = stamp.map_or_else(String::new, |stamp| format!(".{}", stamp_name(stamp)));
    format!("{}/index/{file}.{format}{stamp}.gmi", root(ns))
}

/// The hash of the content that was first read of a file on this machine.
pub fn first_content(ns: &Namespace, file: Fingerprint, format: &str) -> String {
    format!("{}/index/{file}.{format}.content", root(ns))
}

/// The hash of another content that the file has since it has this change stamp.
pub fn other_content(ns: &Namespace, file: Fingerprint, format: &str, stamp: &str) -> String {
    format!("{}/index/{file}.{format}.{}.content", root(ns), stamp_name(stamp))
}

fn stamp_name(stamp: &str) -> String {
    let name = Fingerprint::from_content("gristmill change stamp v1", stamp.as_bytes()).to_string();
    name[..MOUNT_DIGITS].to_owned()
}

/// Whether a key names an index.
pub fn is_index(key: &str) -> bool {
    key.ends_with(".gmi")
}

/// A pack of images, by [`crate::wire::ImagePack::fingerprint`].
pub fn pack(ns: &Namespace, pack: Fingerprint) -> String {
    format!("{}/index/{pack}.pack.json", root(ns))
}

/// A file that an operator needs, by the hash of its content; later jobs may share it.
pub fn asset(ns: &Namespace, content: Fingerprint) -> String {
    format!("{}/index/{content}.asset", root(ns))
}

/// The files of a dataset version as listed.
pub fn listing(ns: &Namespace, version: Fingerprint) -> String {
    format!("{}/datasets/{version}/listing.json", root(ns))
}

/// The files of a dataset version with their record counts.
pub fn manifest(ns: &Namespace, version: Fingerprint) -> String {
    format!("{}/datasets/{version}/manifest.json", root(ns))
}

/// Partition of a job's own items.
pub fn job_partition(ns: &Namespace, job: &JobName) -> String {
    format!("T#{ns}#J#{job}")
}

/// Partition that lists the namespace's jobs, with a sort key for each name.
pub fn jobs_partition(ns: &Namespace) -> String {
    format!("T#{ns}#JOBS")
}

/// Partition that records the use of the cache, with a sort key for each fingerprint.
pub fn cache_partition(ns: &Namespace) -> String {
    format!("T#{ns}#CACHE")
}

/// The partition and the sort key of what jobs of a pipeline measured on a version of the worker function in a region.
pub fn metrics(
    ns: &Namespace,
    pipeline: Fingerprint,
    worker_function: &str,
    region: &str,
) -> (String, String) {
    (format!("T#{ns}#METRICS"), format!("{pipeline}#{worker_function}#{region}"))
}

/// Sort key of the scaler's item in a job's partition.
pub const SCALE: &str = "SCALE";

/// Number of partitions that hold the shards of workers that left.
const LEFT_PARTITIONS: u32 = 8;

/// The partition and the sort key of one shard of workers that left.
pub fn left(ns: &Namespace, job: &JobName, shard: u32) -> (String, String) {
    (format!("{}#L#{}", job_partition(ns, job), shard % LEFT_PARTITIONS), format!("L#{shard:08}"))
}

/// The partitions of all shards of workers that left.
pub fn left_partitions(ns: &Namespace, job: &JobName) -> impl Iterator<Item = String> {
    (0..LEFT_PARTITIONS).map(|shard| left(ns, job, shard).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_never_share_a_key() {
        let (ns, job) = ("a".parse().unwrap(), "j".parse().unwrap());
        let prefix = bundle_prefix(&ns, &job, 1, 2);
        let first = chunk(&prefix, 3, 1, Nonce([1; 8]));
        assert_eq!(first, "t/a/jobs/j/e000001/b00000002/00000003.1.0101010101010101.gmc");
        assert_eq!(parse_chunk(&prefix, &first), Some((3, 1, Nonce([1; 8]))));
        assert_ne!(first, chunk(&prefix, 3, 2, Nonce([1; 8])));
        assert_ne!(first, chunk(&prefix, 3, 1, Nonce([2; 8])));
    }

    #[test]
    fn only_chunks_and_their_parts_are_computed_again() {
        let (ns, job, print) =
            ("a".parse().unwrap(), "j".parse().unwrap(), Fingerprint::from_content("test", b"x"));
        let cache_prefix = build_prefix(&ns, print, Nonce([1; 8]));
        let chunk = chunk(&bundle_prefix(&ns, &job, 1, 2), 3, 1, Nonce([1; 8]));
        let split = cached_split(&cache_prefix, 5);
        for key in [&chunk, &cached_part(&split, 12), &split] {
            assert!(is_recomputed(key), "{key}");
        }
        let record = RecordKey { file: 1, record: 2 };
        for key in [
            index(&ns, print, "images", None),
            pack(&ns, print),
            listing(&ns, print),
            cache_manifest(&cache_prefix),
            cache_entry(&ns, print),
            skipped(&ns, &job, 12, 3),
            quarantined(&ns, &job, record),
            format!("t/a/datasets/{chunk}"),
        ] {
            assert!(!is_recomputed(&key), "{key}");
        }
    }

    #[test]
    fn reports_are_distinguished_from_quarantined_records() {
        let (ns, job) = ("a".parse().unwrap(), "j".parse().unwrap());
        let prefix = quarantine_prefix(&ns, &job);
        let report = skipped(&ns, &job, 12, 3);
        assert_eq!(report, "t/a/quarantine/j/e000012-00000003.skipped.json");
        assert_eq!(parse_skipped(&prefix, &report), Some(12));
        let raw = quarantined(&ns, &job, RecordKey { file: 1, record: 2 });
        assert_eq!(parse_skipped(&prefix, &raw), None);
    }
}

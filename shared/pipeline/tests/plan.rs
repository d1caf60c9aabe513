//! Plans of indexed datasets.

use gristmill_model::wire::{DatasetManifest, JobSpec, ManifestFile, SourceFile, ZipFileCounts};

/// A manifest of files of `(bytes, records)`.
fn manifest(files: &[(u64, u32)], members: &[u32]) -> DatasetManifest {
    let file = |&(size, records): &(u64, u32)| {
        let file = SourceFile::new(format!("f{size}"), size, "e");
        ManifestFile { file, records }
    };
    let files = files.iter().map(file).collect();
    DatasetManifest { bucket: "b".into(), files, members: ZipFileCounts::new(members.to_vec()) }
}

#[test]
fn a_zip_is_planned_by_its_shortest_dataset_and_the_bytes_of_all() {
    let zip = "source: { zip: [{ jsonl: a, features: { x: { dtype: i64 } } }, \
         { jsonl: b, features: { y: { dtype: i64 } }, repeat: 10 }] }\nops: [batch: { size: 4 }]\n";
    let zip = gristmill_operators::parse(zip).unwrap();
    let mut spec = JobSpec::new(zip.canonical_json());
    spec.settings.split_batches = Some(1);
    let files = [(1000, 20), (3000, 30), (200, 2)];
    let plan = zip.plan(&spec, &manifest(&files, &[2, 1]), 7).unwrap();
    assert_eq!((plan.records, plan.n_splits, plan.window_bytes), (20, 5, 7));
    // 4,000 bytes of 50 records, plus 200 bytes of 2.
    assert_eq!(plan.batch_bytes, 4 * (80 + 100));
    let of_others = zip.plan(&spec, &manifest(&files, &[2, 2]), 7);
    assert!(of_others.unwrap_err().contains("other datasets"));
}

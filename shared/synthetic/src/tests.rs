//! Whole datasets: their bytes, their names, and interruptions.

use super::*;

fn keep_going(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Every payload of a TFRecord file. Verifies checksums.
fn records(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = file;
    let mut payloads = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(rest[8..12], tfrecord::masked_crc32c(&rest[..8]).to_le_bytes());
        let payload = &rest[12..12 + length];
        assert_eq!(rest[12 + length..][..4], tfrecord::masked_crc32c(payload).to_le_bytes());
        payloads.push(payload);
        rest = &rest[16 + length..];
    }
    payloads
}

fn hash_of(dir: &Path, spec: &DatasetSpec) -> String {
    let mut hasher = blake3::Hasher::new();
    for shard in 0..spec.shards {
        hasher.update(&fs::read(dir.join(spec.shard_name(shard))).unwrap());
    }
    hasher.finalize().to_hex().to_string()
}

#[test]
fn a_dataset_is_the_same_bytes_everywhere() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("deep/er/images");
    let spec = DatasetSpec { content: DatasetContent::Images, records: 5, shards: 2, seed: 7 };
    ensure(&dir, &spec, &keep_going).unwrap();
    assert_eq!(
        hash_of(&dir, &spec),
        "9d56248f1b4f143563c9a52df7eafae3789686839ebc99e94606b5b6215d7efe",
        "a change of these bytes needs a new VERSION, or cached datasets will mix"
    );
    let counts =
        [0, 1].map(|shard| records(&fs::read(dir.join(spec.shard_name(shard))).unwrap()).len());
    assert_eq!(counts, [2, 3]);
}

#[test]
fn elements_do_not_depend_on_shards_or_count() {
    let home = tempfile::tempdir().unwrap();
    let all = |records_count, shards| {
        let spec = DatasetSpec {
            content: DatasetContent::Images,
            records: records_count,
            shards,
            seed: 3,
        };
        let dir = home.path().join(format!("{records_count}-{shards}"));
        ensure(&dir, &spec, &keep_going).unwrap();
        let files: Vec<_> =
            (0..shards).map(|shard| fs::read(dir.join(spec.shard_name(shard))).unwrap()).collect();
        files.iter().flat_map(|file| records(file)).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let many = all(6, 3);
    assert_eq!(all(4, 1), many[..4]);
}

#[test]
fn ints_hold_their_index() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ints");
    let spec = DatasetSpec::ints(1000, 1);
    ensure(&dir, &spec, &keep_going).unwrap();
    let mut index = 0;
    for shard in 0..spec.shards {
        let file = fs::read(dir.join(spec.shard_name(shard))).unwrap();
        for payload in records(&file) {
            let expected = TfExample::default().with_int("value", index);
            assert_eq!(payload, prost::Message::encode_to_vec(&expected));
            index += 1;
        }
    }
    assert_eq!(index, 1000);
}

#[test]
fn progress_ends_at_the_total_and_a_second_call_makes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ints");
    let spec = DatasetSpec::ints(500, 1);
    let seen = std::cell::RefCell::new(Vec::new());
    let watch = |done, total| {
        seen.borrow_mut().push((done, total));
        ControlFlow::Continue(())
    };
    ensure(&dir, &spec, &watch).unwrap();
    assert_eq!(seen.borrow().last(), Some(&(500, 500)));
    assert!(seen.borrow().is_sorted());
    seen.borrow_mut().clear();
    ensure(&dir, &spec, &watch).unwrap();
    assert!(seen.borrow().is_empty());
}

#[test]
fn breaking_off_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("images");
    let spec = DatasetSpec { content: DatasetContent::Images, records: 64, shards: 4, seed: 1 };
    let error = ensure(&dir, &spec, &|_, _| ControlFlow::Break(())).unwrap_err();
    assert!(error.to_string().contains("broken off"), "{error:#}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn files_of_a_killed_maker_are_made_anew() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ints");
    let spec = DatasetSpec::ints(100, 1);
    let partial = home.path().join("ints.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join(spec.shard_name(0)), b"half a shard").unwrap();
    fs::write(partial.join("stray"), b"").unwrap();
    ensure(&dir, &spec, &keep_going).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let mut expected: Vec<_> = (0..spec.shards).map(|shard| spec.shard_name(shard)).collect();
    expected.insert(0, MANIFEST.to_owned());
    assert_eq!(names, expected.iter().map(std::ffi::OsString::from).collect::<Vec<_>>());
    assert!(!partial.exists());
}

#[test]
fn makers_of_one_dataset_wait_for_each_other() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ints");
    let spec = DatasetSpec::ints(3000, 1);
    thread::scope(|scope| {
        let makers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| ensure(&dir, &spec, &keep_going))).collect();
        for maker in makers {
            maker.join().unwrap().unwrap();
        }
    });
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    assert!(is_complete(&dir, &spec).unwrap());
}

#[test]
fn other_things_are_named_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("mine");
    fs::create_dir(&dir).unwrap();
    let spec = DatasetSpec::ints(100, 1);
    fs::write(dir.join("thesis.tex"), b"years of work").unwrap();
    let error = ensure(&dir, &spec, &keep_going).unwrap_err().to_string();
    assert!(error.contains("mine") && error.contains("left alone"), "{error}");
    assert_eq!(fs::read(dir.join("thesis.tex")).unwrap(), b"years of work");

    fs::remove_file(dir.join("thesis.tex")).unwrap();
    ensure(&dir, &spec, &keep_going).unwrap();
    let other = DatasetSpec { seed: 2, ..spec };
    let error = ensure(&dir, &other, &keep_going).unwrap_err().to_string();
    assert!(error.contains("another dataset (100 Ints, seed 1, version 2)"), "{error}");

    let shard = dir.join(spec.shard_name(0));
    fs::write(&shard, &fs::read(&shard).unwrap()[1..]).unwrap();
    let error = ensure(&dir, &spec, &keep_going).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");

    let file = home.path().join("file");
    fs::write(&file, b"").unwrap();
    ensure(&file, &spec, &keep_going).unwrap_err();
    assert!(file.is_file());
    assert!(!home.path().join("file.partial").exists());
}

#[test]
fn senseless_specs_are_refused_before_any_work() {
    let home = tempfile::tempdir().unwrap();
    for (records, shards) in [(0, 1), (5, 0), (5, 6), (1 << 40, 100_000)] {
        let spec = DatasetSpec { content: DatasetContent::Ints, records, shards, seed: 0 };
        ensure(&home.path().join("x"), &spec, &keep_going).unwrap_err();
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn default_shards_end_off_the_batch() {
    let cases = [(1, 1), (99, 1), (230, 2), (500, 5), (1024, 10), (2048, 15), (4000, 16)];
    for (records, shards) in cases {
        assert_eq!(default_shards(records), shards, "{records} records");
    }
    let spec = DatasetSpec::images(2048, 1);
    let counts: Vec<u64> = (0..spec.shards)
        .map(|shard| spec.shard_records(shard))
        .map(|range| range.end - range.start)
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 2048);
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    assert!(counts.iter().all(|count| count % 64 != 0));
}

#[test]
fn directories_are_named_by_their_spec() {
    assert_eq!(dir_name(&DatasetSpec::images(2000, 1)), "imagenet-like-2000-1-v2");
    assert_eq!(dir_name(&DatasetSpec::ints(128, 9)), "ints-128-9-v2");
    let odd = DatasetSpec { shards: 3, ..DatasetSpec::ints(128, 9) };
    assert_eq!(dir_name(&odd), "ints-128-9-3shards-v2");
}

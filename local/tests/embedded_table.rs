//! The embedded table in its own directory: the rules of the port, killed processes, and its size.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use gristmill_local::EmbeddedTable;
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome, conformance};

/// The variable that names the child's directory.
const CHILD_DIR: &str = "GRISTMILL_TEST_TABLE";

fn key(sk: &str) -> ItemKey {
    ItemKey { pk: "T#t#J#j".into(), sk: sk.into() }
}

async fn put(table: &EmbeddedTable, sk: &str, expected: u64, body: &[u8], expiry: Option<u64>) {
    let body = Bytes::copy_from_slice(body);
    let outcome = table.write(&key(sk), expected, body, expiry).await.unwrap();
    assert_eq!(outcome, WriteOutcome::Written);
}

async fn get(table: &EmbeddedTable, sk: &str) -> Option<TableItem> {
    table.read(&[key(sk)]).await.unwrap().remove(0)
}

#[tokio::test]
async fn the_embedded_table_conforms_and_so_does_one_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    for prefix in ["first", "second"] {
        let table = EmbeddedTable::open(dir.path()).unwrap();
        conformance::table(&table, prefix).await;
    }
    let table = EmbeddedTable::open(dir.path()).unwrap();
    assert_eq!(table.range("first#range", "A#", "A#~").await.unwrap().len(), 65);
}

#[tokio::test]
async fn only_its_owner_may_read_a_table_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (state, file) = (dir.path().join("a/state"), dir.path().join("a/state/table.redb"));
    drop(EmbeddedTable::open(&state).unwrap());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&file)), (0o700, 0o600));
    std::fs::rename(&file, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &file).unwrap();
    assert!(matches!(EmbeddedTable::open(&state).err(), Some(TableError::Unavailable(_))));
}

#[tokio::test]
async fn a_damaged_file_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path()).unwrap();
    for index in 0..200 {
        put(&table, &format!("B#{index}"), 0, &[7; 600], None).await;
    }
    drop(table);
    let path = dir.path().join("table.redb");
    let whole = std::fs::read(&path).unwrap();
    // In the items alone: only a check of every page finds it.
    let changed = whole.iter().map(|byte| if *byte == 7 { 6 } else { *byte });
    let begun = [&[0; 64], &whole[64..]].concat();
    for damaged in [changed.collect(), begun, whole[..20_000].to_vec()] {
        std::fs::write(&path, &damaged).unwrap();
        let error = EmbeddedTable::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("table.redb"), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), damaged.len() as u64);
    }
}

#[tokio::test]
async fn a_sweep_removes_what_has_expired_and_looks_at_a_bounded_number_of_items() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path()).unwrap();
    for index in 0..10 {
        let expiry = [None, Some(100), Some(200)][index % 3];
        put(&table, &format!("B#{index}"), 0, b"x", expiry).await;
    }
    // Written again without an expiry.
    put(&table, "B#1", 1, b"x", None).await;
    assert_eq!(table.sweep(99, 100).await.unwrap(), 0);
    assert_eq!(table.sweep(100, 5).await.unwrap(), 1, "B#4 is among the first five");
    assert_eq!(table.sweep(100, 5).await.unwrap(), 1, "B#7 is among the next five");
    assert_eq!(table.sweep(200, 4).await.unwrap(), 1, "a sweep begins anew after the last item");
    let left = table.range(&key("").pk, "B#", "B#~").await.unwrap();
    let left: Vec<&str> = left.iter().map(|(sk, _)| sk.as_str()).collect();
    assert_eq!(left, ["B#0", "B#1", "B#3", "B#5", "B#6", "B#8", "B#9"]);
    put(&table, "B#4", 0, b"again", None).await;
}

fn bytes_on_disk(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("table.redb")).unwrap().blocks() * 512
}

#[tokio::test]
async fn a_file_grows_with_its_content_and_not_with_its_writes() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path()).unwrap();
    let sks: Vec<String> = (0..200).map(|index| format!("B#{index:08}")).collect();
    for version in 0..500 {
        let body = [version as u8; 600];
        let writes = sks.iter().map(|sk| put(&table, sk, version, &body, None));
        futures::future::join_all(writes).await;
    }
    let content = 200 * 650;
    let bytes = bytes_on_disk(dir.path());
    assert!((content..8 * content).contains(&bytes), "{bytes} bytes for {content}");
    for index in 0..80 {
        // The last one stays, at the end of the file.
        let expiry = (index < 79).then_some(1);
        put(&table, &format!("E#{index}"), 0, &vec![7; 300 << 10], expiry).await;
    }
    assert_eq!(table.sweep(1, 1_000).await.unwrap(), 79);
    assert!(bytes_on_disk(dir.path()) > 16 << 20);
    drop(table);
    let table = EmbeddedTable::open(dir.path()).unwrap();
    let bytes = bytes_on_disk(dir.path());
    assert!(bytes < 2 << 20, "{bytes} bytes after opening");
    assert_eq!(get(&table, "B#00000199").await.unwrap().version, 500);
}

/// Writes one item until it is killed, and prints the versions that were answered.
#[tokio::test]
#[ignore = "the child process of the next test"]
async fn child_that_writes() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let table = EmbeddedTable::open(Path::new(&dir)).unwrap();
    let mut version = get(&table, "B#1").await.map_or(0, |item| item.version);
    loop {
        put(&table, "B#1", version, &(version + 1).to_le_bytes().repeat(75), None).await;
        version += 1;
        println!("\nanswered {version}");
    }
}

#[tokio::test]
async fn a_write_that_was_answered_outlives_a_killed_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut answered: u64 = 0;
    for round in 0..30 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes", "--ignored", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut versions = lines.filter_map(|line| line.strip_prefix("answered ")?.parse().ok());
        answered = versions.nth(10 + round * 3).expect("the child writes until it is killed");
        let second = EmbeddedTable::open(dir.path()).err().unwrap();
        assert!(second.to_string().contains("open in another process"), "{second}");
        child.kill().unwrap();
        answered = versions.fold(answered, u64::max);
        child.wait().unwrap();

        let table = EmbeddedTable::open(dir.path()).unwrap();
        let item = get(&table, "B#1").await.unwrap();
        assert!(item.version >= answered, "{} was {answered}", item.version);
        assert_eq!(item.body, item.version.to_le_bytes().repeat(75));
    }
    assert!(answered > 1_000);
}

//! The embedded table in its own directory: the rules of the port, killed processes, and its size.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use gristmill_local::EmbeddedTable;
use gristmill_ports::{Item, ItemKey, Table, TableError, WriteOutcome, conformance};

/// Where the child process of a test has its table.
const CHILD_DIR: &str = "GRISTMILL_TEST_TABLE";

fn key(sk: &str) -> ItemKey {
    ItemKey { pk: "T#t#J#j".into(), sk: sk.into() }
}

async fn put(table: &EmbeddedTable, sk: &str, expected: u64, body: &[u8], expiry: Option<u64>) {
    let body = Bytes::copy_from_slice(body);
    let outcome = table.write(&key(sk), expected, body, expiry).await.unwrap();
    assert_eq!(outcome, WriteOutcome::Written);
}

async fn get(table: &EmbeddedTable, sk: &str) -> Option<Item> {
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
    assert_eq!(table.query("first#range", "A#").await.unwrap().len(), 65);
}

#[tokio::test]
async fn only_its_owner_may_read_a_table_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (state, table) = (dir.path().join("a/state"), dir.path().join("a/state/table.redb"));
    drop(EmbeddedTable::open(&state).unwrap());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&table)), (0o700, 0o600));

    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(&table, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &table).unwrap();
    assert!(matches!(EmbeddedTable::open(&state), Err(TableError::Unavailable(_))));
}

#[tokio::test]
async fn a_damaged_file_is_named_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path()).unwrap();
    for index in 0..200 {
        put(&table, &format!("B#{index}"), 0, &[7; 600], None).await;
    }
    drop(table);
    let path = dir.path().join("table.redb");
    let whole = std::fs::read(&path).unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let error = EmbeddedTable::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("table.redb"), "{error}");
    };
    damaged(&|bytes| bytes.iter_mut().skip(5_000).step_by(97).for_each(|byte| *byte ^= 1));
    damaged(&|bytes| bytes[..64].fill(0));
    damaged(&|bytes| bytes.truncate(20_000));
    std::fs::write(&path, &whole).unwrap();
    let table = EmbeddedTable::open(dir.path()).unwrap();
    assert_eq!(get(&table, "B#199").await.unwrap().body, vec![7; 600]);
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
    let left = table.query(&key("").pk, "B#").await.unwrap();
    let left: Vec<&str> = left.iter().map(|(sk, _)| sk.as_str()).collect();
    assert_eq!(left, ["B#0", "B#1", "B#3", "B#5", "B#6", "B#8", "B#9"]);
    put(&table, "B#4", 0, b"again", None).await;
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
    let bytes = table.bytes_on_disk();
    assert!((content..8 * content).contains(&bytes), "{bytes} bytes for {content}");
    assert_eq!(get(&table, "B#00000199").await.unwrap().version, 500);
}

/// Writes items until it is killed, and prints each write that was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the child process of the next test"]
async fn child_that_writes() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let table = EmbeddedTable::open(Path::new(&dir)).unwrap();
    let table = &table;
    let writers = (0..4).map(|writer| async move {
        let sk = format!("B#{writer}");
        let mut version = get(table, &sk).await.map_or(0, |item| item.version);
        loop {
            let body = format!("{} of {sk}", version + 1).repeat(50);
            put(table, &sk, version, body.as_bytes(), None).await;
            version += 1;
            // Whole lines, so that a line that is read was answered.
            std::io::stdout().write_all(format!("\nanswered {sk} {version}\n").as_bytes()).unwrap();
        }
    });
    futures::future::join_all(writers).await;
}

#[tokio::test]
async fn a_write_that_was_answered_outlives_a_killed_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut answered: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..30 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes", "--ignored", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut count = 0;
        while count < 20 + round * 3 {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            count += usize::from(note(&line, &mut answered));
        }
        let second = EmbeddedTable::open(dir.path()).unwrap_err();
        let TableError::Rejected(error) = &second else { panic!("{second}") };
        assert!(error.contains("open in another process"), "{error}");
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            note(&line, &mut answered);
        }
        child.wait().unwrap();

        let table = EmbeddedTable::open(dir.path()).unwrap();
        for (sk, version) in &answered {
            let item = get(&table, sk).await.unwrap();
            assert!(item.version >= *version, "{sk}: {} was {version}", item.version);
            assert_eq!(item.body, format!("{} of {sk}", item.version).repeat(50));
        }
    }
    assert_eq!(answered.len(), 4);
}

/// Notes an answered write; false for other lines.
fn note(line: &str, answered: &mut BTreeMap<String, u64>) -> bool {
    let Some((sk, version)) = line.strip_prefix("answered ").and_then(|rest| rest.split_once(' '))
    else {
        return false;
    };
    answered.insert(sk.to_owned(), version.parse().unwrap());
    true
}

//! Conformance suites of the ports. Each suite panics with the rule that is broken, and works under
//! its own `prefix`, so that it can run against a shared store.

use crate::{
    ItemKey, ObjectError, ObjectPath, ObjectStore, PutOutcome, Table, TableItem, WriteOutcome,
};
use bytes::Bytes;
use futures::future::join_all;

/// Rules of [`Table`].
pub async fn table(table: &dyn Table, prefix: &str) {
    let key = ItemKey { pk: format!("{prefix}#pk"), sk: "B#00000001".into() };
    let body = |text: &'static str| Bytes::from_static(text.as_bytes());
    let read = async |key: &ItemKey| -> Option<TableItem> {
        let items = table.read(std::slice::from_ref(key)).await;
        items.expect("a read succeeds").pop().expect("one item per key")
    };

    assert_eq!(read(&key).await, None, "an absent item reads as none");
    let first = table.write(&key, 0, body("{\"a\":1}"), None).await.expect("a write succeeds");
    assert_eq!(first, WriteOutcome::Written, "version 0 creates");
    let stored = TableItem { version: 1, body: body("{\"a\":1}") };
    assert_eq!(read(&key).await, Some(stored.clone()), "a write is read back, at version 1");
    let again = table.write(&key, 0, body("x"), None).await.expect("a conflict is an outcome");
    assert_eq!(again, WriteOutcome::Conflict(Some(stored)), "a conflict returns the current item");
    let packed = Bytes::from_static(&[0, 255, 3]);
    let second = table.write(&key, 1, packed.clone(), Some(4_102_444_800)).await.expect("a write");
    assert_eq!(second, WriteOutcome::Written, "the right version replaces");
    assert_eq!(
        read(&key).await,
        Some(TableItem { version: 2, body: packed }),
        "bytes are kept as given"
    );
    let absent = ItemKey { sk: "B#00000009".into(), ..key.clone() };
    let lost = table.write(&absent, 3, body("x"), None).await.expect("a conflict is an outcome");
    assert_eq!(lost, WriteOutcome::Conflict(None), "a version of an absent item conflicts");

    races(table, prefix).await;
    ranges(table, prefix).await;
    bounds(table, prefix).await;
    ends(table, prefix).await;
    pages(table, prefix).await;
}

async fn races(table: &dyn Table, prefix: &str) {
    for round in 0..8 {
        let key = ItemKey { pk: format!("{prefix}#race"), sk: format!("R#{round}") };
        let tries = (0..12_u8).map(|i| table.write(&key, 0, Bytes::copy_from_slice(&[i]), None));
        let outcomes = join_all(tries).await;
        let won = |outcome: &Result<WriteOutcome, _>| matches!(outcome, Ok(WriteOutcome::Written));
        assert_eq!(outcomes.iter().filter(|o| won(o)).count(), 1, "one writer wins a race");
    }
}

async fn ranges(table: &dyn Table, prefix: &str) {
    let pk = format!("{prefix}#range");
    let keys: Vec<_> = (0..130)
        .map(|i| ItemKey { pk: pk.clone(), sk: format!("{}#{i:04}", ["A", "B"][i % 2]) })
        .collect();
    for key in &keys {
        table.write(key, 0, Bytes::from(key.sk.clone()), None).await.expect("a write succeeds");
    }
    let found = table.range(&pk, "B#", "B#~").await.expect("a query succeeds");
    let expected: Vec<_> = keys.iter().skip(1).step_by(2).map(|key| key.sk.clone()).collect();
    let found_keys: Vec<_> = found.iter().map(|(sk, _)| sk.clone()).collect();
    assert_eq!(found_keys, expected, "a query returns every item of its prefix, in order");
    let many = table.read(&keys).await.expect("a read of many keys succeeds");
    let bodies: Vec<_> = many.into_iter().map(|item| item.map(|item| item.body)).collect();
    let expected: Vec<_> = keys.iter().map(|key| Some(Bytes::from(key.sk.clone()))).collect();
    assert_eq!(bodies, expected, "items come in the order of their keys");
}

/// Writes items under `sks`, each with its sort key as its body.
async fn fill(table: &dyn Table, pk: &str, sks: &[&str]) {
    for sk in sks {
        let key = ItemKey { pk: pk.to_owned(), sk: (*sk).to_owned() };
        let body = Bytes::copy_from_slice(sk.as_bytes());
        table.write(&key, 0, body, None).await.expect("a write succeeds");
    }
}

fn sort_keys(found: Vec<(String, TableItem)>) -> Vec<String> {
    found
        .into_iter()
        .map(|(sk, item)| {
            assert_eq!((item.version, &item.body[..]), (1, sk.as_bytes()), "items come whole");
            sk
        })
        .collect()
}

async fn bounds(table: &dyn Table, prefix: &str) {
    let pk = format!("{prefix}#bounds");
    let sks = ["A", "B#00000001", "B#00000002", "B#00000010", "B#é", "C"];
    fill(table, &pk, &sks).await;
    // Partitions with similar names, which a query must not touch.
    fill(table, &format!("{pk}#"), &["B#00000002"]).await;
    let range = async |from: &str, to: &str| {
        sort_keys(table.range(&pk, from, to).await.expect("a range succeeds"))
    };
    assert_eq!(range("B#00000001", "B#00000010").await, sks[1..4], "both ends are part of a range");
    assert_eq!(range("B#00000003", "B#00000009").await, [""; 0], "a range may be empty");
    assert_eq!(range("B#0", "B#1").await, sks[1..4], "ends need not exist");
    assert_eq!(range("B#00000002", "B#00000002").await, sks[2..3], "one key is a range");
    assert_eq!(range("B#z", "C").await, sks[4..], "keys are compared as bytes");
    assert_eq!(range("C", "A").await, [""; 0], "a range that ends before it begins is empty");
    assert_eq!(range("", "~").await, sks, "everything lies after the empty key");
    assert_eq!(range("", "").await, [""; 0], "no item has the empty key");
    let none = table.range(&format!("{prefix}#absent"), "", "~").await.expect("a range succeeds");
    assert_eq!(none, [], "an absent partition is empty");
}

async fn ends(table: &dyn Table, prefix: &str) {
    let pk = format!("{prefix}#ends");
    let last = async |limit: usize| {
        sort_keys(table.last(&pk, limit).await.expect("the last items are read"))
    };
    assert_eq!(last(4).await, [""; 0], "an absent partition has no last item");
    let mut expected = Vec::new();
    for i in 0..20 {
        let sk = format!("B#{i:08}");
        fill(table, &pk, &[&sk]).await;
        expected.insert(0, sk);
        assert_eq!(last(1).await, expected[..1], "a write that was answered is the last item");
    }
    // Partitions with similar names, before and after.
    fill(table, &format!("{pk}#"), &["Z"]).await;
    fill(table, &format!("{prefix}#end"), &["Z"]).await;
    assert_eq!(last(4).await, expected[..4], "the highest keys come first");
    assert_eq!(last(20).await, expected, "a limit may be what there is");
    assert_eq!(last(1_000).await, expected, "fewer than the limit are all");
    assert_eq!(last(0).await, [""; 0], "none are none");
}

/// Queries of partitions larger than a page of 1 MB.
async fn pages(table: &dyn Table, prefix: &str) {
    let pk = format!("{prefix}#pages");
    let expected: Vec<_> = (0..6).map(|i| format!("B#{i}")).collect();
    for (fill, sk) in (0_u8..).zip(&expected) {
        let key = ItemKey { pk: pk.clone(), sk: sk.clone() };
        let body = Bytes::from(vec![fill; 300 << 10]);
        table.write(&key, 0, body, None).await.expect("a write succeeds");
    }
    let keys = |found: Vec<(String, TableItem)>| -> Vec<String> {
        assert!(found.iter().all(|(_, item)| item.body.len() == 300 << 10), "items come whole");
        found.into_iter().map(|(sk, _)| sk).collect()
    };
    let all = table.range(&pk, "B#", "B#~").await.expect("a query succeeds");
    assert_eq!(keys(all), expected, "a query goes beyond a page");
    let range = table.range(&pk, "B#0", "B#4").await.expect("a range succeeds");
    assert_eq!(keys(range), expected[..5], "a range goes beyond a page");
    let last = table.last(&pk, 5).await.expect("the last items are read");
    let reversed: Vec<_> = expected.into_iter().rev().take(5).collect();
    assert_eq!(keys(last), reversed, "the last items go beyond a page");
}

/// Rules of [`ObjectStore`].
pub async fn objects(objects: &dyn ObjectStore, bucket: &str, prefix: &str) {
    let path = |key: &str| ObjectPath::new(bucket, format!("{prefix}/{key}"));
    let body = Bytes::from_static(b"0123456789");
    let put = |path: ObjectPath, body: Bytes, id: &'static str| async move {
        objects.put_if_absent(&path, body, id).await.expect("a put succeeds")
    };

    let a = path("a");
    assert!(matches!(objects.get(&a).await, Err(ObjectError::NotFound(_))), "absent is not found");
    assert_eq!(put(a.clone(), body.clone(), "p1").await, PutOutcome::Created);
    let other = put(a.clone(), Bytes::from_static(b"other"), "p2").await;
    assert_eq!(other, PutOutcome::Exists, "a second put of a key does not replace");
    assert_eq!(
        put(a.clone(), body.clone(), "p1").await,
        PutOutcome::Created,
        "one's own retry is success"
    );
    assert_eq!(objects.get(&a).await.expect("a get"), body, "the first body stays");

    let listed = objects.list(bucket, &format!("{prefix}/")).await.expect("a list succeeds");
    assert_eq!(listed.len(), 1, "a list returns what is there");
    assert_eq!((listed[0].key.clone(), listed[0].size), (a.key.clone(), 10));
    let etag = listed[0].etag.as_str();
    let range = objects.get_range(&a, 2..5, Some(etag)).await.expect("a ranged get");
    assert_eq!(range, Bytes::from_static(b"234"), "a range has its bytes");
    let changed = objects.get_range(&a, 2..5, Some("\"no-such-etag\"")).await;
    assert!(matches!(changed, Err(ObjectError::Changed(_))), "another etag is a change");
    assert!(objects.get_range(&a, 5..50, None).await.is_err(), "a short object is an error");

    let tries =
        (0..8_u8).map(|i| {
            let path = path("race");
            async move {
                objects.put_if_absent(&path, Bytes::copy_from_slice(&[i]), &format!("r{i}")).await
            }
        });
    let outcomes = join_all(tries).await;
    let won = outcomes.iter().filter(|o| matches!(o, Ok(PutOutcome::Created))).count();
    assert_eq!(won, 1, "one put wins a race");

    let keys = [a.key.clone(), format!("{prefix}/never-was")];
    objects.delete(bucket, &keys).await.expect("deleting what is not there is no error");
    assert!(matches!(objects.get(&a).await, Err(ObjectError::NotFound(_))), "deleted is gone");
}

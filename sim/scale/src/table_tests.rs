//! Units and retries of the metered table.

use super::*;
use crate::deployment::DeploymentParameters;
use gristmill_ports::conformance;

fn deployment(limits: bool) -> Arc<SimulatedDeployment> {
    let setting = DeploymentParameters {
        workers: 1,
        split: Duration::from_millis(300),
        splits: 100,
        split_batches: 1,
        files: 1,
        limits,
        ..DeploymentParameters::default()
    };
    SimulatedDeployment::new(setting, "scale".parse().unwrap(), "job".parse().unwrap())
}

fn key(sk: &str) -> ItemKey {
    ItemKey { pk: "p".to_owned(), sk: sk.to_owned() }
}

fn run(deployment: &SimulatedDeployment, work: impl Future<Output = ()>) {
    deployment.time.runtime().unwrap().block_on(work);
}

#[test]
fn conforms() {
    let deployment = deployment(false);
    let table = MeteredTable::new(&deployment);
    run(&deployment, conformance::table(&*table, "t"));
}

#[test]
fn units_are_those_of_dynamodb() {
    let deployment = deployment(false);
    let table = MeteredTable::new(&deployment);
    run(&deployment, async {
        let used = || {
            let used = table.take_used();
            (used.read_units, used.write_units, used.round_trips)
        };
        let small = Bytes::from_static(b"{}");
        let large = Bytes::from(vec![1; 5_000]);
        table.write(&key("a"), 0, small.clone(), None).await.unwrap();
        assert_eq!(used(), (0, 1, 1));
        table.write(&key("b"), 0, large, None).await.unwrap();
        assert_eq!(used(), (0, 5, 1), "a unit for each KB");
        table.write(&key("b"), 0, small, None).await.unwrap();
        assert_eq!(used(), (0, 5, 1), "a conflict costs as much as the larger item");
        table.read(&[key("a"), key("b"), key("c")]).await.unwrap();
        assert_eq!(used(), (1 + 2 + 1, 0, 1), "items are rounded one by one, absent ones cost too");
        table.range("p", "", "~").await.unwrap();
        assert_eq!(used(), (2, 0, 1), "a query is rounded as a whole");
        table.last("p", 1).await.unwrap();
        assert_eq!(used(), (2, 0, 1));
        table.range("p", "a", "a").await.unwrap();
        assert_eq!(used(), (1, 0, 1));
        let many: Vec<_> = (0..401).map(|i| key(&i.to_string())).collect();
        table.read(&many).await.unwrap();
        assert_eq!(used(), (401, 0, 2), "four batches of a hundred go side by side");
    });
}

#[test]
fn a_partition_at_its_limit_rejects_and_retries_get_through_or_fail() {
    let deployment = deployment(true);
    let table = MeteredTable::new(&deployment);
    run(&deployment, async {
        let body = Bytes::from(vec![1; 380 << 10]);
        // A second's worth of writes and one more: the bucket is empty for longer than the SDK retries.
        for (i, sk) in ["a", "a", "b"].into_iter().enumerate() {
            let body = if sk == "b" { body.slice(..236 << 10) } else { body.clone() };
            table.write(&key(sk), i as u64 % 2, body, None).await.unwrap();
        }
        table.write(&key("a"), 2, body.clone(), None).await.unwrap();
        let failed = table.write(&key("a"), 3, body.clone(), None).await;
        assert!(
            matches!(&failed, Err(TableError::Unavailable(text)) if text.contains("Throughput"))
        );
        assert_eq!(table.take_used().rejected, 4);
        deployment.time.sleep(Duration::from_secs(1)).await;
        let written = table.write(&key("a"), 3, body, None).await;
        assert_eq!(written.unwrap(), WriteOutcome::Written, "what was rejected was not applied");
    });
}

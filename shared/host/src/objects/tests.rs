//! The store on real files: conformance, races, folders, and errors of the disk.

mod faults;
mod simulated;

use super::*;
use gristmill_ports::conformance;

const BUCKET: &str = "own";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_conform() {
    let temp = tempfile::tempdir().unwrap();
    let objects = FileObjects::open(&temp.path().join("objects"), BUCKET).unwrap();
    conformance::objects(&objects, BUCKET, "t").await;
    conformance::objects(&objects, BUCKET, "t/n/jobs/J É/x").await;
}

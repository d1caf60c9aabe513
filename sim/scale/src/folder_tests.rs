//! Workers that read the images of one folder: together they ask for more than S3 gives to its prefix.

use crate::deployment::{DeploymentParameters, SimulatedDeployment};
use bytes::Bytes;
use gristmill_ports::{
    ObjectPath, ObjectStore as _, PrefixReadLimits,
    limits::PREFIX_GETS_PER_S,
    memory::{LimitedObjects, MemoryObjects, ObjectLimits},
};
use std::{sync::Arc, time::Duration};

const WORKERS: usize = 40;
/// Reads at a time of a worker.
const READS: usize = 16;
const GET: Duration = Duration::from_millis(20);
const SECONDS: u64 = 20;
/// Wait of a read that was refused.
const BACKOFF: Duration = Duration::from_millis(40);

/// Requests a second that are served, and refused, with workers that keep to a pace or do not.
fn requests(are_paced: bool) -> (f64, f64) {
    let deployment = SimulatedDeployment::new(
        DeploymentParameters::default(),
        "scale".parse().unwrap(),
        "job".parse().unwrap(),
    );
    let runtime = deployment.time.runtime().unwrap();
    let (served, refused) = runtime.block_on(async {
        let stored = Arc::new(MemoryObjects::default());
        let image = ObjectPath::new("data", "images/1.jpg");
        stored.put_if_absent(&image, Bytes::from_static(b"jpeg"), "p").await.unwrap();
        let limits = ObjectLimits::default();
        let objects = Arc::new(LimitedObjects::new(stored, limits, deployment.clock()));
        for _ in 0..WORKERS {
            let paces = Arc::new(PrefixReadLimits::default());
            for _ in 0..READS {
                let (deployment, objects) = (Arc::clone(&deployment), Arc::clone(&objects));
                let (paces, image) = (Arc::clone(&paces), image.clone());
                tokio::spawn(async move {
                    loop {
                        let reading =
                            if are_paced { Some(paces.begin(&image).await) } else { None };
                        deployment.pause(GET).await;
                        if objects.get(&image).await.is_ok() {
                            continue;
                        }
                        if let Some(reading) = reading {
                            reading.refused();
                        }
                        deployment.pause(BACKOFF).await;
                    }
                });
            }
        }
        deployment.time.sleep(Duration::from_secs(SECONDS)).await;
        objects.requests()
    });
    (served as f64 / SECONDS as f64, refused as f64 / SECONDS as f64)
}

#[test]
fn workers_of_one_folder_share_what_its_prefix_gives() {
    let rate = f64::from(PREFIX_GETS_PER_S);
    let (served, refused) = requests(false);
    assert!(served > 0.95 * rate && refused > rate, "{served} and {refused} a second");
    let (served, refused) = requests(true);
    assert!(served > 0.9 * rate, "{served} a second of {rate}");
    assert!(refused < 0.2 * rate, "{refused} a second are refused");
}

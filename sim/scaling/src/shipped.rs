//! The built-in scenarios, from `sim/scaling/scenarios`.

/// Name and text of each, in the order of the table.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    macro_rules! scenarios {
        ($($name:literal),* $(,)?) => {
            &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),*]
        };
    }
    scenarios![
        "cachew-fig11-job1",
        "cachew-fig11-job2",
        "cachew-fig6-resnet",
        "cachew-fig6-simclr",
        "cachew-fig6-simclr-cached",
        "cachew-fig9-retinanet",
        "fastflow-fig9",
        "pecan-fig6-asr",
        "pecan-fig6-resnet-v2-8",
        "pecan-fig6-resnet-v3-8",
        "pecan-fig6-retinanet",
        "pecan-fig6-simclr",
        "pecan-fig7",
        "tfdata-fig10-m4",
        "tfdata-fig8-m3",
        "tfdata-fig8-resnet",
        "tfdata-fig9-m1",
        "budget",
        "cached-mode",
        "clients-ingest",
        "cold-starts",
        "failures",
        "few-splits",
        "heterogeneous",
        "interference",
        "large-3000",
        "large-600",
        "leases",
        "load-doubles",
        "load-halves",
        "mixed-machines-source",
        "network-bound",
        "noisy",
        "one-worker",
        "plain",
        "put-limit",
        "put-limit-clients",
        "slower-workers",
        "source-limit",
        "tiny-splits-tight",
        "throttled",
        "tight-window",
        "trainer-ingest",
        "two-clients",
    ]
}

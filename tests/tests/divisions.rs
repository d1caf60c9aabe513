//! How many batches a split has: the costs that operators and formats declare, and that passes do not change the number.
//! A changed cost gives jobs other batches; a checkpoint names the number it was taken with.

use gristmill_model::DeclaredCost;
use gristmill_pipeline::{Pipeline, passes};
use gristmill_sources::FORMATS;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};

#[test]
fn declared_costs_stay_the_same() {
    let of = |cost: DeclaredCost| json!([cost.element_ns, cost.byte_ps]);
    let entries = gristmill_operators::registry().entries().iter();
    let operators = entries.map(|entry| (entry.declaration.name, of(entry.declaration.cost)));
    let formats = FORMATS.iter().map(|format| (format.name, of(format.cost)));
    let found = json!({
        "formats": formats.collect::<BTreeMap<_, _>>(),
        "operators": operators.collect::<BTreeMap<_, _>>(),
    });
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/costs.json");
    if std::env::var_os("GRISTMILL_WRITE_GOLDEN").is_some() {
        let text = serde_json::to_string_pretty(&found).expect("it is plain data");
        fs::write(&golden, text + "\n").expect("the golden file can be written");
    }
    let text = fs::read_to_string(&golden).expect("the golden file is there");
    assert_eq!(found, serde_json::from_str::<Value>(&text).expect("it is JSON"));
}

/// The numbers for datasets of few and many records, of small and large ones.
fn numbers(pipeline: &Pipeline) -> Vec<u64> {
    let sizes = [10, 1_000, 100_000, 10_000_000];
    let datasets = [1, 500, 20_000, 10_000_000].into_iter();
    let datasets = datasets.flat_map(|records| sizes.map(|bytes| (records, bytes)));
    datasets.map(|(records, bytes)| pipeline.split_batches(records, bytes)).collect()
}

#[test]
fn passes_do_not_change_which_records_are_in_a_batch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let examples = fs::read_dir(root).expect("there are examples");
    let examples = examples.map(|entry| entry.expect("an entry can be read").path());
    let mut changed = 0;
    for path in examples.filter(|path| path.extension().is_some_and(|found| found == "yaml")) {
        let yaml = fs::read_to_string(&path).expect("an example can be read");
        for order in ["exact", "pecan", "false"] {
            let yaml = format!("auto_order: {order}\n{}", yaml.replace("auto_order:", "# "));
            let pipeline = gristmill_operators::parse(&yaml)
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let optimised = passes::optimise(&pipeline, &BTreeMap::new()).pipeline;
            assert_eq!(numbers(&optimised), numbers(&pipeline), "{path:?} with {order}");
            let canonical = Pipeline::from_canonical(
                &optimised.canonical_json(),
                gristmill_operators::registry(),
            );
            let canonical = canonical.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_eq!(numbers(&canonical), numbers(&pipeline), "{path:?} as a job has it");
            changed += usize::from(optimised.canonical_json() != pipeline.canonical_json());
        }
    }
    assert!(changed >= 10, "passes changed {changed} examples only");
}

#[test]
fn light_records_make_large_splits_and_costly_ones_small_splits() {
    let parse = |ops: &str| {
        let source = "source: { jsonl: x, features: { a: { dtype: i64 } } }";
        gristmill_operators::parse(&format!("{source}\nops: [{ops}batch: {{ size: 8 }}]\n"))
            .expect("it is a pipeline")
    };
    // One split of the whole: a record takes microseconds.
    assert_eq!(parse("").split_batches(512, 12), 64);
    // A minute each: no two batches together pay.
    assert_eq!(parse("sleep: { ms: 60000 }, ").split_batches(512, 12), 1);
    // 57 ms at 2 ms a record are 29 records.
    assert_eq!(parse("sleep: { ms: 2 }, ").split_batches(512, 12), 4);
    // A large dataset is divided by bytes and fan-out as ever.
    let light = parse("");
    assert_eq!(light.split_batches(1 << 24, 12), (1 << 24) / 8 / 64);
    assert_eq!(light.split_batches(1 << 30, 12), (64 << 20) / 8 / 20, "64 MiB at most");
    assert_eq!(light.split_batches(1 << 20, 4 << 20), 2, "64 MiB at most");
}

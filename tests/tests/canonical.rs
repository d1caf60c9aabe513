//! The canonical form and the fingerprints of every example. Jobs, caches and checkpoints name results by
//! them: a change here makes every stored result unreachable, and needs a new operator version.

use gristmill_model::Fingerprint;
use gristmill_pipeline::{AssetReference, Pipeline, passes};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};

fn described(path: &Path) -> Value {
    let yaml = fs::read_to_string(path).expect("an example can be read");
    let pipeline =
        gristmill_operators::parse(&yaml).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let pipeline = pipeline.with_assets(&mut |path| Ok(AssetReference::hash(path.as_bytes())));
    let pipeline = pipeline.expect("every asset has a hash");
    let optimised = passes::optimise(&pipeline, &BTreeMap::new()).pipeline;
    let dataset = Fingerprint([7; 32]);
    let fingerprints = |pipeline: &Pipeline| -> Vec<String> {
        let all = pipeline.prefix_fingerprints(&dataset, "golden", 3, 2);
        all.into_iter()
            .chain([pipeline.fingerprint(&dataset, "golden")])
            .map(|f| f.to_string())
            .collect()
    };
    json!({
        "canonical": pipeline.canonical_json(),
        "optimised": optimised.canonical_json(),
        "fingerprints": fingerprints(&pipeline),
        "optimised_fingerprints": fingerprints(&optimised),
    })
}

#[test]
fn canonical_forms_and_fingerprints_of_examples_stay_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("golden/canonical.json");
    let examples = fs::read_dir(root.join("../examples")).expect("there are examples");
    let examples = examples.map(|entry| entry.expect("an entry can be read").path());
    let found: BTreeMap<String, Value> = examples
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| {
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            (name, described(&path))
        })
        .collect();
    if std::env::var_os("GRISTMILL_WRITE_GOLDEN").is_some() {
        let text = serde_json::to_string_pretty(&found).expect("it is plain data");
        fs::write(&golden, text + "\n").expect("the golden file can be written");
    }
    let text = fs::read_to_string(&golden).expect("the golden file is there");
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, found) in found {
        assert_eq!(found, expected[&name], "{name}");
    }
}

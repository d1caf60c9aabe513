//! An operator's asset: read beside the pipeline, stored by its content, loaded by workers.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_sink, run_json};
use std::fs;

const TOKENIZER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../shared/operators/tests/golden/tokenizer-bytelevel.json"
);

#[test]
fn workers_tokenise_by_a_file_beside_the_pipeline() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::create_dir(dir.path("mine"))?;
    fs::copy(TOKENIZER, dir.path("mine/tokenizer.json"))?;
    let lines = (0..50).map(|i| format!("{{\"text\": \"the {i}th of fifty lines\"}}\n"));
    fs::write(dir.path("mine/lines.jsonl"), lines.collect::<String>())?;
    let pipeline = |name: &str, tokenizer: &str| -> Result<_> {
        let path = dir.path(name);
        let text = format!(
            "source: {{ jsonl: lines.jsonl, features: {{ text: {{ dtype: bytes }} }} }}\n\
             ops:\n  - tokenise: {{ field: text, tokenizer: {tokenizer} }}\n  \
             - padded_batch: {{ size: 16 }}\n"
        );
        fs::write(&path, text)?;
        Ok(path)
    };
    let run = |path: &std::path::Path, sink: &str| {
        let mut command = dir.gristmill(&["run"]);
        command.arg(path).args(["--epochs", "1", "--step-time", "0ms", "--json", "--sink"]);
        command.arg(dir.path(sink));
        command
    };
    let path = pipeline("mine/p.yaml", "tokenizer.json")?;
    let report = run_json(&mut run(&path, "sink"))?;
    assert_eq!(
        (report["elements_delivered"].as_u64(), report["lost"].as_u64()),
        (Some(50), Some(0))
    );
    // 50 is not a multiple of 16: the trainer's side joins and pads the last batch.
    read_sink(&dir.path("sink"))?.assert_exact(1, 50, 16);

    let path = pipeline("mine/q.yaml", "nowhere.json")?;
    let refused = run(&path, "other").output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("line 3: `tokenise` needs `nowhere.json`: "), "{said}");
    Ok(())
}

//! `gristmill show`: looking at elements changes none of them.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, run_json};
use serde_json::Value;
use std::fs;

const PICTURES: &str = "source: { images: pictures }
ops:
  - decode
  - random_resized_crop: { size: 16 }
  - color_jitter: { brightness: 0.5, contrast: 0.5 }
  - flip
  - batch: { size: 4 }
";

fn test_dir() -> Result<TestDir> {
    TestDir::new(env!("CARGO_BIN_EXE_gristmill"))
}

fn write_pictures(dir: &TestDir) -> Result<()> {
    for (i, class) in ["cats", "dogs"].into_iter().cycle().take(6).enumerate() {
        fs::create_dir_all(dir.path("pictures").join(class))?;
        let pixels: Vec<u8> = (0..40 * 30 * 3).map(|at| (at * (i + 2) / 7) as u8).collect();
        let mut jpeg = Vec::new();
        jpeg_encoder::Encoder::new(&mut jpeg, 90).encode(
            &pixels,
            40,
            30,
            jpeg_encoder::ColorType::Rgb,
        )?;
        fs::write(dir.path("pictures").join(class).join(format!("{i}.jpg")), jpeg)?;
    }
    Ok(())
}

fn show(dir: &TestDir, more: &[&str]) -> Result<Value> {
    run_json(dir.gristmill(&["show", "--json"]).arg(dir.path("p.yaml")).args(more))
}

#[test]
fn a_batch_is_made_of_the_elements_that_were_shown_before_it() -> Result<()> {
    let dir = test_dir()?;
    write_pictures(&dir)?;
    fs::write(dir.path("p.yaml"), PICTURES)?;
    let mut seen = Vec::new();
    for seed in ["0", "1"] {
        let shown = show(&dir, &["-n", "4", "--seed", seed])?;
        let steps = shown["steps"].as_array().unwrap();
        let lines: Vec<_> = steps.iter().map(|step| step["line"].as_u64()).collect();
        assert_eq!(lines, [None, Some(3), Some(4), Some(5), Some(6), Some(7)]);
        // The batch comes from a run without cache points, whose decoding and cropping are one step.
        assert_eq!(steps[4]["elements"], steps[5]["elements"]);
        assert_eq!(steps[1]["elements"][0]["image"]["shape"], serde_json::json!([30, 40, 3]));
        seen.push(shown["steps"][5].clone());
    }
    assert_ne!(seen[0], seen[1], "seeds draw alike");
    Ok(())
}

#[test]
fn filtered_and_refused_records_are_missing_after_the_operator_at_fault() -> Result<()> {
    let dir = test_dir()?;
    fs::create_dir(dir.path("data"))?;
    let lines = "{\"x\": [1], \"t\": \"a\"}\n{\"x\": [5, 6, 7], \"t\": \"b\"}\n{\"x\": [2, 3], \"t\": \"c<\"}\n";
    fs::write(
        dir.path("data").join("a.jsonl"),
        format!("{lines}{{\"x\": \"no\", \"t\": \"d\"}}\n"),
    )?;
    fs::write(
        dir.path("p.yaml"),
        "source: { jsonl: data, features: { x: { dtype: i64, shape: [-1] }, t: { dtype: bytes } } }
ops:
  - length: { field: x, into: n }
  - filter: { field: n, max: 2 }
  - padded_batch: { size: 8 }
",
    )?;
    let shown = show(&dir, &["-n", "9"])?;
    let steps = shown["steps"].as_array().unwrap();
    let counts: Vec<_> =
        steps.iter().map(|step| step["elements"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [3, 3, 2, 2]);
    let batch = &shown["steps"][3]["elements"];
    assert_eq!(batch[0]["x"]["values"], serde_json::json!([1.0, 0.0]));
    let skipped = shown["skipped"][0].as_str().unwrap();
    assert!(skipped.contains("refused by `source`"), "{skipped}");
    let page = dir.gristmill(&["show", "--html", "-"]).arg(dir.path("p.yaml")).output()?;
    let page = String::from_utf8(page.stdout)?;
    assert!(page.contains("c&lt;") && !page.contains("c<"), "{page}");
    let text = dir.gristmill(&["show"]).arg(dir.path("p.yaml")).output()?;
    let text = String::from_utf8(text.stdout)?;
    assert!(text.contains("length (line 3)") && text.contains("i64 [3]"), "{text}");
    Ok(())
}

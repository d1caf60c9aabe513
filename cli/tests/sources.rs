//! The same pictures as TFRecord, as a WebDataset archive and as a folder; malformed archives.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use gristmill_tests::{Background, TestDir, read_sink, run_json};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};
use tar::{Builder, EntryType, Header};

const PICTURES: u32 = 30;

fn picture(seed: u32) -> Vec<u8> {
    let (width, height) = (40 + (seed % 7) as u16, 32_u16);
    let pixels: Vec<u8> = (0..u32::from(width) * u32::from(height) * 3)
        .map(|i| ((i / 9 + seed * 11) % 256) as u8)
        .collect();
    let mut jpeg = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 80);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    jpeg
}

fn label(seed: u32) -> u32 {
    seed % 3
}

const OPS: &str = "ops: [decode, random_resized_crop: { size: 16 }, batch: { size: 4 }]\n";
const WEBDATASET: &str = "source: { webdataset: x, features: { image: { key: jpeg;jpg, dtype: bytes }, label: { key: cls, dtype: i64 } } }\n";

fn archive(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn members() -> Vec<(String, Vec<u8>)> {
    let parts = |i| {
        [
            (format!("set/{i:05}.jpg"), picture(i)),
            (format!("set/{i:05}.cls"), label(i).to_string().into_bytes()),
        ]
    };
    (0..PICTURES).flat_map(parts).collect()
}

fn run(dir: &TestDir, source: &str, data: &Path, more: &[&str]) -> Result<Output> {
    run_text(dir, &format!("{source}{OPS}"), data, more)
}

fn run_text(dir: &TestDir, text: &str, data: &Path, more: &[&str]) -> Result<Output> {
    let pipeline = dir.path("p.yaml");
    fs::write(&pipeline, text)?;
    let mut command = dir.gristmill(&["run"]);
    command.arg(pipeline).arg("--data").arg(data);
    command.args(["--epochs", "2", "--step-time", "0ms", "--json"]).args(more);
    Ok(command.stdin(Stdio::null()).output()?)
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
}

#[test]
fn one_set_of_pictures_gives_one_set_of_batches() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let mut records = Vec::new();
    let mut writer = RecordWriter::new(&mut records);
    for i in 0..PICTURES {
        let example = TfExample::default().with_bytes("jpg", picture(i));
        writer.write(&example.with_int("cls", i64::from(label(i))))?;
    }
    writer.finish()?;
    for set in ["records", "archives", "folder"] {
        fs::create_dir(dir.path(set))?;
    }
    fs::write(dir.path("records/set-0"), records)?;
    fs::write(dir.path("archives/set-0.tar"), archive(&members()))?;

    let tfrecord = WEBDATASET.replace("webdataset", "tfrecord").replace("jpeg;jpg", "jpg");
    let from_records = report(&run(&dir, &tfrecord, &dir.path("records"), &[])?);
    let from_archive = report(&run(&dir, WEBDATASET, &dir.path("archives"), &[])?);
    assert_eq!(from_archive["elements_delivered"], 2 * PICTURES);
    assert_eq!(from_archive["batches_blake3"], from_records["batches_blake3"]);

    for i in 0..PICTURES {
        let class = dir.path(&format!("folder/class-{}", label(i)));
        fs::create_dir_all(&class)?;
        fs::write(class.join(format!("{i}.JPG")), picture(i))?;
    }
    fs::write(dir.path("folder/README.md"), "about")?;
    let folder = "source: { images: x }\n";
    let sink = dir.path("sink");
    let more = ["--sink", sink.to_str().unwrap()];
    let from_folder = report(&run(&dir, folder, &dir.path("folder"), &more)?);
    read_sink(&sink)?.assert_exact(2, PICTURES as usize, 4);
    let again = report(&run(&dir, folder, &dir.path("folder"), &["--workers", "1"])?);
    assert_eq!(again["batches_blake3"], from_folder["batches_blake3"]);
    let local = ["--workers", "0", "--local-workers", "1"];
    let again = report(&run(&dir, folder, &dir.path("folder"), &local)?);
    assert_eq!(again["batches_blake3"], from_folder["batches_blake3"]);
    Ok(())
}

#[test]
fn lines_give_the_batches_of_records() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    for set in ["records", "lines"] {
        fs::create_dir(dir.path(set))?;
    }
    for file in 0..2_i64 {
        let (mut records, mut lines) = (Vec::new(), String::new());
        let mut writer = RecordWriter::new(&mut records);
        for i in 0..40 {
            let (label, index) = (i * 3 - file, i64::from(i % 2 == 0));
            let example = TfExample::default().with_int("label", label);
            writer.write(&example.with_int("even", index))?;
            let blank = if i % 5 == 0 { "\r\n" } else { "" };
            let even = i % 2 == 0;
            lines += &format!("{blank}{{\"even\": {even}, \"of\": {{\"label\": {label}}}}}\n");
        }
        writer.finish()?;
        fs::write(dir.path(&format!("records/part-{file}")), records)?;
        fs::write(dir.path(&format!("lines/part-{file}.jsonl")), lines)?;
    }
    let pipeline = |source: &str, key: &str| {
        format!(
            "source: {{ {source}: x, features: {{ label: {{ key: {key}, dtype: i64 }}, even: {{ dtype: i64 }} }} }}\n\
             ops: [batch: {{ size: 6 }}]\n"
        )
    };
    let records =
        report(&run_text(&dir, &pipeline("tfrecord", "label"), &dir.path("records"), &[])?);
    let lines = report(&run_text(&dir, &pipeline("jsonl", "of.label"), &dir.path("lines"), &[])?);
    assert_eq!(lines["elements_delivered"], 160);
    assert_eq!(lines["batches_blake3"], records["batches_blake3"]);

    // A value that is not an object is reported with its place; files of another format are left
    // out.
    fs::write(
        dir.path("lines/part-0.jsonl"),
        "{\"even\": 1, \"of\": {\"label\": 1}}\n\nrubbish\n",
    )?;
    let failed = run_text(&dir, &pipeline("jsonl", "of.label"), &dir.path("lines"), &[])?;
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("part-0.jsonl line 3, record 1 (source): not valid JSON"), "{said}");
    let refused = run_text(&dir, &pipeline("parquet", "label"), &dir.path("lines"), &[])?;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("left out 2 of 2 files: part-0.jsonl (not Parquet)"), "{said}");
    let failed = run_text(&dir, &pipeline("parquet", "label"), &dir.path("lines/part-*"), &[])?;
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("does not end as a Parquet file"), "{said}");
    Ok(())
}

#[test]
fn pictures_that_cannot_be_read_are_named() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::create_dir_all(dir.path("folder/a"))?;
    for i in 0..6 {
        fs::write(dir.path(&format!("folder/a/{i}.jpg")), picture(i))?;
    }
    fs::write(dir.path("folder/a/text.jpg"), "not a picture")?;
    fs::write(dir.path("folder/a/empty.png"), "")?;
    let folder = "source: { images: x }\n";
    let failed = run(&dir, folder, &dir.path("folder"), &[])?;
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("folder/a/text.jpg") || said.contains("folder/a/empty.png"), "{said}");

    let skipped =
        run(&dir, folder, &dir.path("folder"), &["--on-error", "skip", "--max-skipped", "100%"])?;
    let report = report(&skipped);
    assert_eq!((report["skipped"].as_u64(), report["lost"].as_u64()), (Some(4), Some(0)));
    let listed = report["skipped_records"].as_array().unwrap();
    let named = |record: &Value| record["source"].as_str().unwrap().to_owned();
    let mut names: Vec<String> = listed.iter().map(named).collect();
    names.sort();
    let path = |name: &str| dir.path(&format!("folder/a/{name}")).canonicalize().unwrap();
    let wanted = ["empty.png", "text.jpg"].map(|name| path(name).display().to_string());
    assert_eq!(names, wanted);
    assert!(listed.iter().all(|record| record["epochs"] == serde_json::json!([0, 1])), "{report}");
    let said = String::from_utf8_lossy(&skipped.stderr);
    assert!(said.contains("left out: ") && said.contains("text.jpg (decode): "), "{said}");
    Ok(())
}

#[test]
fn a_running_service_tells_what_a_job_left_out() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let mut members = members();
    members[6].1 = b"no picture".to_vec();
    fs::write(dir.path("set.tar"), archive(&members))?;
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    let endpoint = ready["endpoint"].as_str().unwrap();
    let service = ["--state-dir", &state];
    let more = [
        "--job",
        "j1",
        "--on-error",
        "quarantine",
        "--max-skipped",
        "100%",
        "--endpoint",
        endpoint,
    ];
    report(&run(&dir, WEBDATASET, &dir.path("set.tar"), &more)?);
    let mut status =
        dir.gristmill(&["status", "j1", "--skipped", "--json", service[0], service[1]]);
    let status = run_json(&mut status)?;
    let listed = status["skipped"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{status}");
    assert_eq!((&listed[0]["key"], &listed[0]["op"]), (&Value::from(3), &Value::from("decode")));
    assert!(listed[0]["source"].as_str().unwrap().ends_with("set.tar record 3"), "{status}");
    let text = dir.gristmill(&["status", "j1", "--skipped", service[0], service[1]]).output()?;
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.ends_with("job j1: 1 records were reported as left out\n"), "{text}");
    assert_eq!(up.interrupt()?, Some(0));
    Ok(())
}

fn header(name: &str, size: u64, kind: EntryType) -> Header {
    let mut header = Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_size(size);
    header.set_entry_type(kind);
    header.set_cksum();
    header
}

/// An archive of good members, then `member`.
fn and_then(header: &Header, content: &[u8]) -> Vec<u8> {
    let good = archive(&members());
    let end = good.len() - 1024;
    [&good[..end], header.as_bytes(), content, &[0; 1024]].concat()
}

#[test]
fn archives_that_lie_fail_the_job_in_one_line_or_give_what_lies_before() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let good = archive(&members());
    let mut broken = good.clone();
    broken[700] ^= 0x55;
    broken[20] ^= 0x55;
    let pax = |body: &[u8]| {
        let mut content = body.to_vec();
        content.resize(content.len().next_multiple_of(512), 0);
        content.extend(header("x.jpg", 1, EntryType::Regular).as_bytes());
        content.extend([0; 512]);
        and_then(&header("pax", body.len() as u64, EntryType::XHeader), &content)
    };
    for (name, file, words) in [
        ("a flipped bit", broken, ["record 0", "checksum"]),
        ("cut short", good[..good.len() - 2000].to_vec(), ["record 29", "cut short"]),
        ("compressed", [&[0x1f, 0x8b, 8][..], &[7; 5000]].concat(), ["gzip", "damaged"]),
        ("more after the end", [&good[..], &[7; 512]].concat(), ["after the end mark", "set.tar"]),
        (
            "a size of 2^60",
            and_then(&header("y.jpg", 1 << 60, EntryType::Regular), b""),
            ["record 30", "limit"],
        ),
        ("a pax size of 2^63", pax(b"28 size=9223372036854775808\n"), ["record 30", "limit"]),
        ("a pax length that lies", pax(b"999999 path=x\n"), ["record 29", "length key=value"]),
        (
            "a pax header of 1 GB",
            and_then(&header("p", 1 << 30, EntryType::XHeader), b""),
            ["record 29", "65536"],
        ),
        (
            "an endless name",
            and_then(&header("l", 1 << 30, EntryType::GNULongName), b""),
            ["record 29", "65536"],
        ),
    ] {
        let data = dir.path("set.tar");
        fs::write(&data, file)?;
        let skip = run(&dir, WEBDATASET, &data, &["--on-error", "skip", "--max-skipped", "100%"])?;
        let report = String::from_utf8_lossy(&skip.stdout);
        assert_eq!(
            skip.status.code(),
            Some(0),
            "{name}: {}",
            String::from_utf8_lossy(&skip.stderr)
        );
        assert!(report.contains("the file is damaged: record "), "{name}: {report}");
        let ended = run(&dir, WEBDATASET, &data, &[])?;
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), said.lines().count()), (Some(1), 1), "{name}: {said}");
        for word in words {
            assert!(said.contains(word), "{name}: {word:?} is not in {said:?}");
        }
    }
    let data = dir.path("set.tar");
    fs::write(&data, archive(&[("README".to_owned(), b"x".to_vec())]))?;
    let ended = run(&dir, WEBDATASET, &data, &[])?;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("the dataset has no records"), "{said}");
    Ok(())
}

#[test]
fn names_that_point_elsewhere_are_only_names() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let mut builder = Builder::new(Vec::new());
    for (i, name) in ["../../../escaped", "/etc/passwd", "a/../../b"].into_iter().enumerate() {
        for (key, content) in [("jpg", picture(i as u32)), ("cls", b"1".to_vec())] {
            let mut header = header("x", content.len() as u64, EntryType::Regular);
            // The crate's setter refuses such names; an attacker's writer would not.
            let field = &mut header.as_old_mut().name;
            let name = format!("{name}.{key}");
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, content.as_slice())?;
        }
    }
    let mut linked = Builder::new(builder.get_ref().clone());
    fs::write(dir.path("set.tar"), builder.into_inner()?)?;
    let report = report(&run(&dir, WEBDATASET, &dir.path("set.tar"), &[])?);
    assert_eq!(report["elements_delivered"], 6, "three records in each of two epochs");
    let mut link = header("link.jpg", 0, EntryType::Symlink);
    link.set_link_name("/etc/passwd")?;
    link.set_cksum();
    linked.append(&link, &b""[..])?;
    fs::write(dir.path("linked.tar"), linked.into_inner()?)?;
    let refused = run(&dir, WEBDATASET, &dir.path("linked.tar"), &[])?;
    let said = String::from_utf8_lossy(&refused.stderr);
    let word = "is a link to `/etc/passwd`, which is no file of this archive";
    assert!(refused.status.code() == Some(1) && said.contains(word), "{said}");
    Ok(())
}

#[test]
fn batches_are_the_same_normalised_by_worker_or_fetcher() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::create_dir(dir.path("archives"))?;
    fs::write(dir.path("archives/set-0.tar"), archive(&members()))?;
    // 30 pictures in batches of 4: the last batch is joined from the remainders of splits.
    let run = |order: &str, more: &[&str]| -> Result<Value> {
        let ops = "ops: [decode, random_resized_crop: { size: 17 }, normalise: { mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.4] }, layout: { to: nchw }, batch: { size: 4 }]\n";
        let text = format!("{order}{WEBDATASET}{ops}");
        let more = [&["--split-batches", "3"], more].concat();
        Ok(report(&run_text(&dir, &text, &dir.path("archives"), &more)?))
    };
    let in_fetcher = run("", &[])?;
    let in_workers = run("auto_order: false\n", &[])?;
    assert_eq!(in_fetcher["elements_delivered"], 2 * PICTURES);
    assert_eq!(in_fetcher["batches_blake3"], in_workers["batches_blake3"]);
    let local = run("", &["--workers", "0", "--local-workers", "1"])?;
    assert_eq!(local["batches_blake3"], in_workers["batches_blake3"]);
    Ok(())
}

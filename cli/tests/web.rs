//! Datasets on a web server, end to end.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

/// How a server answers.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Ranges,
    /// Whole files only.
    Whole,
    /// The tag of a file changes with every request.
    Changes,
    /// Nothing without credentials.
    Secret,
}

/// Serves the files below `root`, and returns the server's address.
fn serve(root: PathBuf, habit: Habit) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let root = Arc::new(root);
    thread::spawn(move || {
        for (number, connection) in listener.incoming().enumerate() {
            let root = Arc::clone(&root);
            thread::spawn(move || answer(connection.unwrap(), &root, (habit, number)));
        }
    });
    Ok(address)
}

fn answer(mut connection: TcpStream, root: &Path, (habit, number): (Habit, usize)) -> Option<()> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).ok()?;
    if habit == Habit::Secret && !request.contains("authorization: Bearer 1234\r\n") {
        let none = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return connection.write_all(none.as_bytes()).ok();
    }
    let path = request.split(' ').nth(1)?.trim_start_matches('/');
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let content = if query.contains("list-type=2") {
        listing(&root.join(path))
    } else {
        fs::read(root.join(path))
    };
    let Ok(content) = content else {
        let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return connection.write_all(none.as_bytes()).ok();
    };
    let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let version = if habit == Habit::Changes { number } else { 0 };
    let (status, body) = match range.filter(|_| habit != Habit::Whole) {
        Some(range) => {
            let (first, last) = range.split_once('-')?;
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let last = last.min(content.len() - 1);
            let part = format!(
                "206 Partial Content\r\ncontent-range: bytes {first}-{last}/{}",
                content.len()
            );
            (part, &content[first..=last])
        }
        None => ("200 OK".to_owned(), &content[..]),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{version}\"\r\nconnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).ok()?;
    connection.write_all(body).ok()
}

/// The files of a bucket, as S3 lists them.
fn listing(bucket: &Path) -> std::io::Result<Vec<u8>> {
    let mut xml = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for file in fs::read_dir(bucket)? {
        let file = file?;
        let (key, size) = (file.file_name().into_string().unwrap(), file.metadata()?.len());
        xml += &format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;0&quot;</ETag></Contents>"
        );
    }
    Ok((xml + "</ListBucketResult>").into_bytes())
}

const PIPELINE: &str = "
source:
  jsonl: https://example.invalid/x
  features:
    n: { dtype: i64 }
ops:
  - batch: { size: 16 }
";

/// Three files of `each` numbers, counted from 0.
fn write_numbers(root: &Path, each: usize) -> Result<()> {
    for file in 0..3 {
        let lines = (0..each).map(|i| format!("{{\"n\": {}}}\n", file * each + i));
        fs::write(root.join(format!("part-{file}.jsonl")), lines.collect::<String>())?;
    }
    Ok(())
}

struct Place {
    dir: TestDir,
    pipeline: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::create_dir(dir.path("www"))?;
        write_numbers(&dir.path("www"), 100)?;
        let pipeline = dir.path("p.yaml");
        fs::write(&pipeline, PIPELINE)?;
        Ok(Self { dir, pipeline })
    }

    fn server(&self, habit: Habit) -> Result<String> {
        serve(self.dir.path("www"), habit)
    }

    fn run(&self, data: &str) -> Command {
        let mut command = self.dir.gristmill(&["run"]);
        command.arg(&self.pipeline).args(["--epochs", "1", "--step-time", "0ms", "--data", data]);
        command
    }

    /// Exit code and standard error.
    fn fails(&self, data: &str) -> Result<(Option<i32>, String)> {
        let output = self.run(data).output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    }
}

/// Runs to the end, and checks the delivered numbers.
fn delivers(place: &Place, mut command: Command, numbers: Range<i64>) -> Result<()> {
    let sink = place.dir.path(&format!("sink-{}-{}", numbers.start, numbers.end));
    let report = run_json(command.arg("--json").arg("--sink").arg(&sink))?;
    assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
    let mut found = read_numbers(&sink, "n")?;
    found.values_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(found, BTreeMap::from([(0, numbers.collect())]));
    Ok(())
}

#[test]
fn files_of_a_web_server_are_a_dataset() -> Result<()> {
    let place = Place::new()?;
    let server = place.server(Habit::Ranges)?;
    delivers(&place, place.run(&format!("{server}/part-{{0..2}}.jsonl")), 0..300)?;
    let mut explain = place.dir.gristmill(&["explain"]);
    explain.arg(&place.pipeline).arg("--data").arg(format!("{server}/part-1.jsonl"));
    let explained = explain.output()?;
    assert!(explained.status.success(), "{}", String::from_utf8_lossy(&explained.stderr));
    Ok(())
}

#[test]
fn servers_that_cannot_be_read_from_are_named() -> Result<()> {
    let place = Place::new()?;
    let ranges = place.server(Habit::Ranges)?;
    let (code, said) = place.fails(&format!("{ranges}/part-{{2..3}}.jsonl"))?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("no file matches {ranges}/part-3.jsonl")), "{said}");
    let (code, said) = place.fails(&format!("{}/part-0.jsonl", place.server(Habit::Whole)?))?;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("part-0.jsonl: the server sends the whole file where a range is asked for"),
        "{said}"
    );
    let (code, said) = place.fails(&format!("{}/part-0.jsonl", place.server(Habit::Changes)?))?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("part-0.jsonl has changed since it was listed"), "{said}");
    let (code, said) = place.fails("https://me:s3cret@example.invalid/x")?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("leave user and password out") && !said.contains("s3cret"), "{said}");
    Ok(())
}

/// Both use the service that all processes of a user share.
#[test]
fn workers_have_the_credentials_of_a_run_that_follows_one_without() -> Result<()> {
    let place = Place::new()?;
    delivers(
        &place,
        place.run(&format!("{}/part-1.jsonl", place.server(Habit::Ranges)?)),
        100..200,
    )?;
    let mut known = place.run(&format!("{}/part-0.jsonl", place.server(Habit::Secret)?));
    known.env("GRISTMILL_WEB_AUTHORIZATION", "127.0.0.1 Bearer 1234");
    delivers(&place, known, 0..100)
}

/// Tests against a foreign server with TLS. `scripts/test-peers` gives its address and the folder
/// that it serves as `files`, without ranges as `whole`, behind a redirect as `moved`, and to
/// holders of a token as `secret`.
mod peer {
    use super::*;

    /// The server, and one of its folders that no other test uses.
    fn server(folder: &str) -> Result<(Place, String, PathBuf)> {
        let root = PathBuf::from(env::var("GRISTMILL_PEER_WEB_ROOT")?).join(folder);
        fs::create_dir_all(&root)?;
        write_numbers(&root, 100)?;
        Ok((Place::new()?, env::var("GRISTMILL_PEER_WEB")?, root))
    }

    #[test]
    #[ignore = "needs a peer"]
    fn files_are_read_by_ranges_through_redirects_and_with_credentials() -> Result<()> {
        let (place, server, _) = server("stays")?;
        delivers(&place, place.run(&format!("{server}/files/stays/part-{{0..2}}.jsonl")), 0..300)?;
        delivers(&place, place.run(&format!("{server}/moved/stays/part-1.jsonl")), 100..200)?;
        let (code, said) = place.fails(&format!("{server}/whole/stays/part-0.jsonl"))?;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("part-0.jsonl: the server sends the whole file"), "{said}");

        let secret = format!("{server}/secret/stays/part-0.jsonl");
        let (code, said) = place.fails(&secret)?;
        assert!(code != Some(0) && said.contains("401"), "{code:?}: {said}");
        let host = server.trim_start_matches("https://").split(':').next().unwrap();
        let mut known = place.run(&secret);
        known.env("GRISTMILL_WEB_AUTHORIZATION", format!("{host} Bearer 1234"));
        delivers(&place, known, 0..100)
    }

    #[test]
    #[ignore = "needs a peer"]
    fn a_file_that_changes_while_it_is_read_ends_the_job() -> Result<()> {
        let (place, server, root) = server("changes")?;
        let source = PIPELINE.replace("ops:\n", "ops:\n  - sleep: { ms: 20 }\n");
        fs::write(&place.pipeline, source)?;
        let mut command = place.run(&format!("{server}/files/changes/part-{{0..2}}.jsonl"));
        let sink = place.dir.path("sink");
        command.args(["--workers", "1", "--split-batches", "1", "--sink"]).arg(&sink);
        let job = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        while fs::read_dir(&sink).map_or(0, Iterator::count) == 0 {
            thread::sleep(Duration::from_millis(50));
        }
        write_numbers(&root, 101)?;
        let output = job.wait_with_output()?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("has changed since it was listed"), "{said}");
        Ok(())
    }
}

#[test]
fn a_plan_of_what_is_on_s3_is_that_of_the_same_files_here() -> Result<()> {
    let place = Place::new()?;
    let endpoint = place.server(Habit::Ranges)?;
    fs::create_dir(place.dir.path("www/bucket"))?;
    write_numbers(&place.dir.path("www/bucket"), 100)?;
    let plan = |data: &str| -> Result<Value> {
        let mut command =
            place.dir.gristmill(&["plan", "--json", "--step-time", "1ms", "--data", data]);
        command.arg(&place.pipeline).env("AWS_ENDPOINT_URL_S3", &endpoint);
        command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
        let plan = run_json(command.env("AWS_REGION", "us-east-1"))?["plan"].take();
        let said = json!([plan["records"], plan["splits"], plan["functions"]["cost"]["requests"]]);
        assert!(plan["records"].as_u64() >= Some(300), "{plan}");
        Ok(said)
    };
    let here = place.dir.path("www/bucket/part-*").display().to_string();
    assert_eq!(plan("s3://bucket/part-*")?, plan(&here)?);
    Ok(())
}

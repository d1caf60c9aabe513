//! Datasets on a web server, end to end.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// How a server answers.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Ranges,
    /// Whole files only.
    Whole,
    /// The tag of a file is another at every request.
    Changes,
}

/// Serves the files below `root`, and gives the server's address.
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
    let path = request.split(' ').nth(1)?.trim_start_matches('/');
    let Ok(content) = fs::read(root.join(path)) else {
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

const PIPELINE: &str = "
source:
  jsonl: https://example.invalid/x
  features:
    n: { dtype: i64 }
ops:
  - batch: { size: 16 }
";

struct Place {
    dir: TestDir,
    pipeline: PathBuf,
}

impl Place {
    /// Three files of 100 numbers.
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::create_dir(dir.path("www"))?;
        for file in 0..3 {
            let lines = (0..100).map(|i| format!("{{\"n\": {}}}\n", file * 100 + i));
            fs::write(dir.path(&format!("www/part-{file}.jsonl")), lines.collect::<String>())?;
        }
        let pipeline = dir.path("p.yaml");
        fs::write(&pipeline, PIPELINE)?;
        Ok(Self { dir, pipeline })
    }

    fn server(&self, habit: Habit) -> Result<String> {
        serve(self.dir.path("www"), habit)
    }

    fn run(&self, data: &str) -> std::process::Command {
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

#[test]
fn files_of_a_web_server_are_a_dataset() -> Result<()> {
    let place = Place::new()?;
    let server = place.server(Habit::Ranges)?;
    let sink = place.dir.path("sink");
    let mut command = place.run(&format!("{server}/part-{{0..2}}.jsonl"));
    let report = run_json(command.arg("--json").arg("--sink").arg(&sink))?;
    assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
    let mut numbers = read_numbers(&sink, "n")?;
    numbers.values_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(numbers, BTreeMap::from([(0, (0..300).collect())]));
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

//! The project as data: its files, and the members of its workspace with their manifests.

use crate::files::TOP_LEVEL;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use toml::{Table, Value};

pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the tests crate lies in the repository")
}

/// Path (relative, `/`) of every file that belongs to the project: what git tracks, or, in a copy
/// without git, what lies where the project's files may lie.
pub fn files() -> Vec<String> {
    let root = root();
    let git = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output();
    let tracked: Vec<String> = match git {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .filter(|path| root.join(path).is_file())
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    };
    if !tracked.is_empty() {
        return tracked;
    }
    let mut found = Vec::new();
    let mut ahead: Vec<PathBuf> = TOP_LEVEL.iter().map(|name| root.join(name)).collect();
    while let Some(path) = ahead.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && name != "__pycache__" {
            let entries = fs::read_dir(&path).expect("a directory can be listed");
            ahead.extend(entries.map(|entry| entry.expect("an entry can be read").path()));
        } else if path.is_file() {
            found.push(
                path.strip_prefix(&root)
                    .expect("it was found below the root")
                    .display()
                    .to_string(),
            );
        }
    }
    found.sort();
    found
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn rust_files() -> Vec<(String, String)> {
    let sources = files().into_iter().filter(|path| path.ends_with(".rs"));
    sources.map(|path| (path.clone(), read(&path))).collect()
}

/// A member of the workspace.
pub struct Member {
    pub folder: String,
    /// Its package's name without `gristmill-`.
    pub name: String,
    text: String,
    pub manifest: Table,
}

impl Member {
    pub fn path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// Dependencies of the kind `kind` and their specifications, of all targets.
    pub fn dependencies(&self, kind: &str) -> Vec<(&str, &Value)> {
        let targets = self.manifest.get("target").and_then(Value::as_table);
        let tables = targets.into_iter().flat_map(|table| table.values());
        let tables = tables.filter_map(|target| target.get(kind)).chain(self.manifest.get(kind));
        let tables = tables.filter_map(Value::as_table);
        tables.flatten().map(|(name, spec)| (name.as_str(), spec)).collect()
    }

    /// `file:line` of a dependency.
    pub fn place(&self, dependency: &str) -> String {
        format!("{}:{}", self.path(), line_of(&self.text, |line| names(line, dependency)))
    }
}

fn names(line: &str, dependency: &str) -> bool {
    let rest = line.trim_start().strip_prefix(dependency);
    rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
}

/// Number of the first line that `is` holds for; 1 if none.
fn line_of(text: &str, is: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is).unwrap_or(0) + 1
}

pub fn parse(path: &str) -> (String, Table) {
    let text = read(path);
    let table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    (text, table)
}

pub fn members() -> Vec<Member> {
    let (_, workspace) = parse("Cargo.toml");
    let folders = workspace["workspace"]["members"].as_array().expect("members are a list");
    let member = |folder: &Value| {
        let folder = folder.as_str().expect("a member is a path").to_owned();
        let (text, manifest) = parse(&format!("{folder}/Cargo.toml"));
        let package = manifest["package"]["name"].as_str().expect("a package has a name");
        let name = package.strip_prefix("gristmill-").unwrap_or("cli").to_owned();
        Member { folder, name, text, manifest }
    };
    folders.iter().map(member).collect()
}

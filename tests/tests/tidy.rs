//! Rules of the project that no compiler checks: who may import whom, where the cloud is named, how
//! files begin and how long they get. Each failure names a file, the rule and what to do.

use gristmill_pipeline::Pipeline;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use toml::{Table, Value};

/// What each crate may import of the others, `gristmill-` left out. `*`: it composes, and may import
/// all but programs and tests. The same table, for people, is in ARCHITECTURE.md.
const MAY_IMPORT: &[(&str, &str)] = &[
    ("model", ""),
    ("pipeline", "model"),
    ("chunk", "model"),
    ("report", ""),
    ("policy", "model pipeline"),
    ("ports", "model"),
    ("jpeg", ""),
    ("folder", ""),
    ("synthetic", ""),
    ("executor", "model pipeline chunk jpeg"),
    ("runner", "model pipeline policy chunk ports executor"),
    ("aws", "model ports"),
    ("web", "ports"),
    ("coordinator", "model pipeline policy chunk ports aws"),
    ("scaler", "model pipeline policy chunk ports aws"),
    ("worker", "model pipeline policy chunk ports aws web executor runner"),
    ("fetcher", "model pipeline chunk ports aws web executor runner report folder"),
    ("local", "*"),
    ("faults", "*"),
    ("scaling", "model policy"),
    ("scale", "*"),
    ("cli", "*"),
    ("fuzz", "*"),
    ("tests", "*"),
    ("user-operator", "pipeline executor fetcher"),
];

/// Crates nothing may import, not even those that compose.
const IMPORTED_BY_NONE: &[&str] = &["cli", "fuzz", "tests", "user-operator"];

/// Everything that may lie at the top; what a directory holds is its own affair.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "cli",
    "clippy.toml",
    "deny.toml",
    "docs",
    "examples",
    "fetcher",
    "functions",
    "fuzz",
    "infra",
    "local",
    "python",
    "rustfmt.toml",
    "scripts",
    "shared",
    "sim",
    "template.yaml",
    "tests",
];

/// A longer file is several files.
const FILE_LINES_MAX: usize = 700;

/// Crates of the AWS SDK proper; the signing and runtime crates beside it are not clients.
const SDK: &str = concat!("aws", "-sdk-");
const SDK_IN_CODE: &str = concat!("aws", "_sdk_");
const ADAPTERS_IN_CODE: &str = concat!("gristmill", "_aws");

/// Places outside the repository, which whoever reads it does not have.
const ELSEWHERE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("shared", "/design"),
    concat!("shared", "/papers"),
    concat!(".lib", "rary/"),
];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the tests crate lies in the repository")
}

/// Path (relative, `/`) of every file that belongs to the project: what git tracks, or, in a copy
/// without git, what lies where the project's files may lie.
fn files() -> Vec<String> {
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

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rust_files() -> Vec<(String, String)> {
    let sources = files().into_iter().filter(|path| path.ends_with(".rs"));
    sources.map(|path| (path.clone(), read(&path))).collect()
}

/// A member of the workspace.
struct Member {
    folder: String,
    /// Its name in [`MAY_IMPORT`].
    name: String,
    text: String,
    manifest: Table,
}

impl Member {
    fn path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// Dependencies of the kind `kind` and their specifications, of all targets.
    fn dependencies(&self, kind: &str) -> Vec<(&str, &Value)> {
        let targets = self.manifest.get("target").and_then(Value::as_table);
        let tables = targets.into_iter().flat_map(|table| table.values());
        let tables = tables.filter_map(|target| target.get(kind)).chain(self.manifest.get(kind));
        let tables = tables.filter_map(Value::as_table);
        tables.flatten().map(|(name, spec)| (name.as_str(), spec)).collect()
    }

    /// `file:line` of a dependency.
    fn place(&self, dependency: &str) -> String {
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

fn parse(path: &str) -> (String, Table) {
    let text = read(path);
    let table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    (text, table)
}

fn members() -> Vec<Member> {
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

fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n  {}\n", violations.join("\n  "));
}

#[test]
fn crates_import_only_what_they_may() {
    let mut violations = Vec::new();
    for member in members() {
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == member.name) else {
            violations.push(format!(
                "{}: crate `{}` has no row in the import table; add one in tests/tests/tidy.rs and \
                 in ARCHITECTURE.md",
                member.path(),
                member.name
            ));
            continue;
        };
        for kind in ["dependencies", "build-dependencies"] {
            for (dependency, _) in member.dependencies(kind) {
                let Some(imported) = dependency.strip_prefix("gristmill-") else { continue };
                let composes = *allowed == "*" && !IMPORTED_BY_NONE.contains(&imported);
                if !composes && !allowed.split(' ').any(|name| name == imported) {
                    violations.push(format!(
                        "{}: `{}` may not import `{imported}`, only: {allowed}; pass what it needs \
                         as an argument or move the code",
                        member.place(dependency),
                        member.name
                    ));
                }
            }
        }
    }
    assert_none(violations);
}

#[test]
fn only_the_adapters_name_the_sdk() {
    let mut violations = Vec::new();
    for member in members().iter().filter(|member| member.name != "aws") {
        // The stand-ins are held to the SDK itself, by their tests.
        let held_to_it = member.name == "local";
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for (dependency, _) in member.dependencies(kind) {
                if dependency.starts_with(SDK) && !(held_to_it && kind == "dev-dependencies") {
                    violations.push(format!(
                        "{}: only shared/aws depends on `{dependency}`; go through gristmill-ports",
                        member.place(dependency)
                    ));
                }
            }
        }
    }
    for (path, text) in rust_files() {
        let sdk = ["shared/aws/", "local/tests/", "local/examples/"];
        let sdk = sdk.iter().any(|folder| path.starts_with(folder));
        let function = path.strip_prefix("functions/").and_then(|path| path.split_once('/'));
        let adapters = sdk
            || path.starts_with("cli/")
            || path == "fetcher/src/program.rs"
            || function
                .is_some_and(|(_, rest)| rest == "src/main.rs" || rest.starts_with("tests/"));
        for (number, line) in (1..).zip(text.lines()) {
            if line.contains(SDK_IN_CODE) && !sdk {
                violations.push(format!(
                    "{path}:{number}: only shared/aws names the AWS SDK; use a trait of gristmill-ports"
                ));
            }
            if line.contains(ADAPTERS_IN_CODE) && !adapters {
                violations.push(format!(
                    "{path}:{number}: the AWS adapters are wired in programs only; take a trait \
                     of gristmill-ports as an argument"
                ));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn nothing_strays_at_the_top() {
    let present: BTreeSet<String> =
        files().iter().filter_map(|path| Some(path.split('/').next()?.to_owned())).collect();
    let stray = present.iter().filter(|name| !TOP_LEVEL.contains(&name.as_str()));
    assert_none(
        stray
            .map(|name| {
                format!("{name}: not a place at the top level; put it in one of the folders")
            })
            .collect(),
    );
}

#[test]
fn rust_files_say_what_they_are_and_stay_short() {
    let mut violations = Vec::new();
    for (path, text) in rust_files() {
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            violations.push(format!("{path}:1: open it with a `//!` paragraph: what is it for?"));
        }
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            violations.push(format!(
                "{path}:{lines}: longer than {FILE_LINES_MAX} lines; divide it by what it does"
            ));
        }
    }
    assert_none(violations);
}

#[test]
fn the_map_names_every_crate() {
    let map = read("ARCHITECTURE.md");
    let missing = |member: &Member| !map.contains(&format!("`{}`", member.folder));
    let unnamed = members().into_iter().filter(missing);
    assert_none(
        unnamed
            .map(|member| {
                format!("ARCHITECTURE.md: `{}` is not on the map; add its row", member.folder)
            })
            .collect(),
    );
}

#[test]
fn the_project_stands_alone() {
    let mut violations = Vec::new();
    for path in files() {
        // Golden files and the like are not text.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            for elsewhere in ELSEWHERE.iter().filter(|place| line.contains(**place)) {
                violations.push(format!(
                    "{path}:{number}: names `{elsewhere}`, which readers do not have; say it here"
                ));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn example_pipelines_parse() {
    let examples = files().into_iter().filter(|path| path.starts_with("examples/"));
    // Operators of users are known to their own program, whose test this is.
    let ours = examples.filter(|path| !path.starts_with("examples/user-operator/"));
    let pipelines: Vec<String> = ours.filter(|path| path.ends_with(".yaml")).collect();
    let wrong = |path: &String| {
        let error = Pipeline::parse(&read(path)).err()?;
        Some(format!("{path}: {error}"))
    };
    assert_none(pipelines.iter().filter_map(wrong).collect());
}

#[test]
fn dependencies_are_chosen_once_for_all() {
    let (text, workspace) = parse("Cargo.toml");
    let mut violations = Vec::new();
    let mut listed: Vec<&str> = Vec::new();
    let section =
        text.lines().enumerate().skip_while(|(_, line)| *line != "[workspace.dependencies]");
    for (index, line) in section.skip(1).take_while(|(_, line)| !line.starts_with('[')) {
        let Some((name, _)) = line.split_once('=') else { continue };
        let name = name.trim();
        // Our own crates come first.
        let ours = |name: &str| !name.starts_with("gristmill-");
        if let Some(before) =
            listed.last().filter(|before| (ours(before), **before) > (ours(name), name))
        {
            violations.push(format!(
                "Cargo.toml:{}: `{name}` comes before `{before}` in the alphabet; swap them",
                index + 1
            ));
        }
        listed.push(name);
    }
    let known = workspace["workspace"]["dependencies"].as_table().unwrap();
    assert_eq!(listed.len(), known.len(), "every workspace dependency on one line of its own");
    for member in members() {
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for (dependency, spec) in member.dependencies(kind) {
                if spec.get("workspace").and_then(Value::as_bool) != Some(true) {
                    violations.push(format!(
                        "{}: write `{dependency}.workspace = true`, its version in the root Cargo.toml",
                        member.place(dependency)
                    ));
                }
            }
        }
        let lints = member.manifest.get("lints").and_then(|lints| lints.get("workspace"));
        if lints.and_then(Value::as_bool) != Some(true) {
            violations.push(format!("{}: add `[lints]` with `workspace = true`", member.path()));
        }
    }
    assert_none(violations);
}

//! Which crate may depend on which, where the cloud's SDK is named, and how versions are chosen.

use crate::{
    assert_none,
    project::{members, parse, rust_files},
};
use toml::Value;

/// Crates that each crate may import, `gristmill-` left out. `*`: may import all but programs and
/// tests, because it composes them. The same table, for people, is in ARCHITECTURE.md.
const MAY_IMPORT: &[(&str, &str)] = &[
    ("model", ""),
    ("syntax", ""),
    ("sources", "model syntax kernel chunk synthetic"),
    ("pipeline", "model syntax sources kernel"),
    ("chunk", "model"),
    ("report", "model"),
    ("policy", "model pipeline"),
    ("ports", "model"),
    ("jpeg", ""),
    ("synthetic", ""),
    ("kernel", "model"),
    ("operators", "model pipeline kernel sources jpeg"),
    ("executor", "model pipeline sources kernel chunk"),
    ("runner", "model pipeline policy chunk ports sources executor"),
    ("aws", "model ports"),
    ("web", "ports"),
    ("host", "model ports"),
    ("coordinator", "model pipeline operators policy chunk ports aws"),
    ("scaler", "model pipeline policy chunk ports aws"),
    ("worker", "model pipeline policy chunk ports aws host web executor runner operators"),
    ("stream", "model pipeline operators chunk ports executor runner report"),
    ("serve", "model ports stream"),
    (
        "client",
        "model pipeline sources operators policy ports aws host web executor runner report stream",
    ),
    ("fetcher", "model pipeline operators client serve stream"),
    ("local", "*"),
    ("faults", "*"),
    ("scaling", "model policy"),
    ("scale", "*"),
    ("trainer-sim", "model chunk ports pipeline operators client serve stream"),
    ("virtual-time", ""),
    ("cli", "*"),
    ("python", "*"),
    ("fuzz", "*"),
    ("tests", "*"),
    ("trainer", "client serve stream synthetic"),
    ("user-operator", "kernel pipeline operators fetcher sources"),
];

/// Crates nothing may import, not even those that compose.
const IMPORTED_BY_NONE: &[&str] = &["cli", "faults", "fuzz", "tests", "trainer", "user-operator"];

/// Crates of the AWS SDK proper; the signing and runtime crates beside it are not clients.
const SDK: &str = concat!("aws", "-sdk-");
const SDK_IN_CODE: &str = concat!("aws", "_sdk_");
const ADAPTERS_IN_CODE: &str = concat!("gristmill", "_aws");

#[test]
fn crates_import_only_what_they_may() {
    let mut violations = Vec::new();
    for member in members() {
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == member.name) else {
            violations.push(format!(
                "{}: crate `{}` has no row in the import table; add one in tests/tests/tidy/dependencies.rs and \
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
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for (dependency, _) in member.dependencies(kind) {
                if dependency.starts_with(SDK) {
                    violations.push(format!(
                        "{}: only shared/aws depends on `{dependency}`; go through gristmill-ports",
                        member.place(dependency)
                    ));
                }
            }
        }
    }
    for (path, text) in rust_files() {
        let sdk = path.starts_with("shared/aws/");
        let function = path.strip_prefix("functions/").and_then(|path| path.split_once('/'));
        let adapters = sdk
            || path.starts_with("cli/")
            || path == "shared/client/src/service.rs"
            || function.is_some_and(|(_, rest)| {
                ["src/main.rs", "src/wiring", "tests/"].iter().any(|start| rest.starts_with(start))
            });
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

/// Crates that only kernels need: decoders, resizers, tokenizers, readers of records.
const OF_KERNELS: &[&str] = &[
    "bzip2",
    "fast_image_resize",
    "gif",
    "gristmill-executor",
    "gristmill-jpeg",
    "image-webp",
    "libjpeg-turbo-rs",
    "liblzma",
    "parquet",
    "png",
    "pulp",
    "tiff",
    "tokenizers",
];

/// The coordinator plans with operators and computes nothing; what its zip does not hold starts no slower.
#[test]
fn the_coordinator_links_no_kernels() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "gristmill-coordinator", "--format", "{p}"])
        .current_dir(crate::project::root())
        .output()
        .expect("cargo tree can be run");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
    let linked = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    assert!(linked("gristmill-operators"), "cargo tree lists what is linked");
    let heavy = OF_KERNELS.iter().filter(|name| linked(name));
    assert_none(
        heavy
            .map(|name| {
                format!(
                    "functions/coordinator links `{name}`, which only kernels need; \
                     `cargo tree -p gristmill-coordinator -i {name}` shows why"
                )
            })
            .collect(),
    );
}

//! Operators read the parameters they declare, and the documentation lists the same.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_operators::{describe, registry};
use gristmill_pipeline::{DefaultValue, MappingReader, Parameter, ParameterKind, SyntaxNode};
use std::{collections::BTreeSet, fs, path::Path};

/// A value that a parameter takes, as a pipeline file has it.
fn example(parameter: &Parameter) -> String {
    fn text(kind: &ParameterKind) -> String {
        match kind {
            ParameterKind::Bool => "true".into(),
            ParameterKind::Whole { min, .. } => (*min).max(1).to_string(),
            ParameterKind::Number { min, max } => (0.5_f64).clamp(*min, *max).to_string(),
            ParameterKind::Size { .. } => "8".into(),
            ParameterKind::Text | ParameterKind::Field => "x".into(),
            ParameterKind::Choice(names) => (*names.last().unwrap()).into(),
            ParameterKind::List(item) => format!("[{}, {}]", text(item), text(item)),
            ParameterKind::Map(value) => format!("{{ x: {} }}", text(value)),
            ParameterKind::Features => "{ y: { key: x, dtype: i64 } }".into(),
            ParameterKind::Other(_) => "8".into(),
        }
    }
    match (parameter.name, parameter.kind) {
        ("columns" | "fields" | "masks" | "boxes" | "labels", _) => "[x]".into(),
        ("mean" | "std", _) => "0.5".into(),
        ("boundaries", _) => "[3, 5]".into(),
        ("delimiter", _) => "\";\"".into(),
        _ => text(&parameter.kind),
    }
}

/// The keys that parsing asks for, given `given` of the declared ones.
fn asked(name: &str, given: &[&Parameter]) -> (BTreeSet<&'static str>, Result<(), String>) {
    let given = given.iter().map(|parameter| (*parameter, example(parameter)));
    parsed(name, &given.collect::<Vec<_>>())
}

/// As [`asked`], with these values.
fn parsed(
    name: &str,
    given: &[(&Parameter, String)],
) -> (BTreeSet<&'static str>, Result<(), String>) {
    let entries = given.iter().map(|(parameter, value)| format!("{}: {value}", parameter.name));
    let node =
        SyntaxNode::parse(&format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))).unwrap();
    let mut table = MappingReader::new(name, &node).unwrap();
    let parsed = registry().get(name).unwrap().parse(&mut table);
    let asked = table.asked().iter().copied().collect();
    let outcome = parsed.map(drop).and_then(|()| table.finish());
    (asked, outcome.map_err(|error| error.to_string()))
}

#[test]
fn operators_read_the_parameters_they_declare_and_no_others() {
    for entry in registry().entries() {
        let name = entry.declaration.name;
        let declared: BTreeSet<&str> = entry.parameters.iter().map(|p| p.name).collect();
        assert_eq!(declared.len(), entry.parameters.len(), "`{name}` declares one twice");
        let required = |p: &&Parameter| p.default == DefaultValue::Required;
        let required: Vec<&Parameter> = entry.parameters.iter().filter(required).collect();
        let mut read = asked(name, &required).0;
        // Each parameter beside the required ones: some are read only where others are given.
        for parameter in entry.parameters {
            let others = required.iter().copied().filter(|other| other.name != parameter.name);
            let given: Vec<&Parameter> = others.chain([parameter]).collect();
            read.extend(asked(name, &given).0);
        }
        let boxes = entry.parameters.iter().filter(|p| ["boxes", "labels"].contains(&p.name));
        read.extend(asked(name, &required.iter().copied().chain(boxes).collect::<Vec<_>>()).0);
        assert_eq!(read, declared, "`{name}` reads and declares");
    }
}

/// A value that a kind does not take, if there is one of the right form.
fn outside(kind: &ParameterKind) -> Option<String> {
    match kind {
        ParameterKind::Whole { max, .. } => Some(max.checked_add(1)?.to_string()),
        ParameterKind::Size { max } => Some((max + 1).to_string()),
        ParameterKind::Number { max, .. } if *max < f64::MAX => Some((max + 1.0).to_string()),
        ParameterKind::Choice(_) => Some("none_of_these".into()),
        ParameterKind::List(item) => outside(item).map(|value| format!("[{value}, {value}]")),
        ParameterKind::Map(value) => outside(value).map(|value| format!("{{ x: {value} }}")),
        _ => None,
    }
}

#[test]
fn values_outside_the_declared_ones_are_refused() {
    for entry in registry().entries() {
        let name = entry.declaration.name;
        let is_needed = |p: &&Parameter| {
            let one_of_two = [
                ("pad", "padding"),
                ("bucket_by_sequence_length", "size"),
                ("group_by_window", "size"),
            ];
            let is_one_of_two = one_of_two.contains(&(name, p.name));
            p.default == DefaultValue::Required || p.name == "boxes" || is_one_of_two
        };
        for parameter in entry.parameters {
            let Some(value) = outside(&parameter.kind) else { continue };
            let others = entry.parameters.iter().filter(is_needed);
            let others = others.filter(|other| other.name != parameter.name);
            let others = others.map(|other| (other, example(other)));
            let given: Vec<_> = others.chain([(parameter, value.clone())]).collect();
            let error = parsed(name, &given).1.expect_err(&format!("`{name}`: {value}"));
            assert!(error.contains(parameter.name), "`{name}` `{}`: {error}", parameter.name);
        }
    }
}

#[test]
fn required_parameters_are_required_and_defaults_are_values() {
    for entry in registry().entries() {
        let name = entry.declaration.name;
        let required = |p: &&Parameter| p.default == DefaultValue::Required;
        let required: Vec<&Parameter> = entry.parameters.iter().filter(required).collect();
        for missing in &required {
            let given: Vec<&Parameter> =
                required.iter().copied().filter(|p| p.name != missing.name).collect();
            let (_, outcome) = asked(name, &given);
            let error = outcome.expect_err(name);
            assert!(error.contains(missing.name), "`{name}` without `{}`: {error}", missing.name);
        }
        for parameter in entry.parameters {
            assert!(
                parameter.doc.ends_with('.'),
                "`{name}` `{}`: {}",
                parameter.name,
                parameter.doc
            );
        }
    }
}

#[test]
fn the_documentation_has_the_parameters_as_they_are_declared() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operators.md");
    let text = fs::read_to_string(&path).unwrap();
    let generated = describe::with_tables(&text, registry()).unwrap();
    if std::env::var_os("GRISTMILL_WRITE_DOCS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    let differ = text.lines().zip(generated.lines()).find(|(one, other)| one != other);
    assert_eq!(differ, None, "run this test with GRISTMILL_WRITE_DOCS=1");
    assert_eq!(text.len(), generated.len());
}

#[test]
fn the_index_of_other_operators_names_only_what_there_is() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = fs::read_to_string(docs.join("pipelines.md")).unwrap();
    let index = text.split("## tf.data's operators").nth(1).unwrap();
    let index = index.split("\n## ").next().unwrap();
    let sections = fs::read_to_string(docs.join("operators.md")).unwrap();
    let mut links = 0;
    for link in index.split("](operators.md#").skip(1) {
        let name = link.split(')').next().unwrap();
        let heading = format!("\n### {}\n", name.replace('-', " ")).to_lowercase();
        let is_section = sections.to_lowercase().replace("\n## ", "\n### ").contains(&heading);
        assert!(registry().get(name).is_some() || is_section, "{name}");
        links += 1;
    }
    assert!(links > 20, "{links}");
}

//! Operators read the parameters they declare, and the documentation lists the same.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_operators::{describe, registry};
use gristmill_pipeline::{DefaultValue, Kind, Node, Parameter, Table};
use std::{collections::BTreeSet, fs, path::Path};

/// A value that a parameter takes, as a pipeline file has it.
fn example(parameter: &Parameter) -> String {
    fn of(kind: &Kind) -> String {
        match kind {
            Kind::Bool => "true".into(),
            Kind::Whole { min, .. } => (*min).max(1).to_string(),
            Kind::Number { min, max } => (0.5_f64).clamp(*min, *max).to_string(),
            Kind::Text | Kind::Field => "x".into(),
            Kind::Choice(names) => (*names.last().unwrap()).into(),
            Kind::List(item) => format!("[{}, {}]", of(item), of(item)),
            Kind::Map(value) => format!("{{ x: {} }}", of(value)),
            Kind::Features => "{ y: { key: x, dtype: i64 } }".into(),
            Kind::Other(_) => "8".into(),
        }
    }
    match (parameter.name, parameter.kind) {
        ("columns" | "fields" | "masks" | "boxes" | "labels", _) => "[x]".into(),
        ("mean" | "std", _) => "0.5".into(),
        ("boundaries", _) => "[3, 5]".into(),
        ("delimiter", _) => "\";\"".into(),
        _ => of(&parameter.kind),
    }
}

/// The keys that parsing asks for, given `given` of the declared ones.
fn asked(name: &str, given: &[&Parameter]) -> (BTreeSet<&'static str>, Result<(), String>) {
    let entries =
        given.iter().map(|parameter| format!("{}: {}", parameter.name, example(parameter)));
    let node = Node::parse(&format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))).unwrap();
    let mut table = Table::new(name, &node).unwrap();
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

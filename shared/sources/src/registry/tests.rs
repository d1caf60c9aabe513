//! Rules for every registered format.

use super::*;
use crate::{FORMATS, FileFormat};
use gristmill_syntax::DefaultValue;
use std::collections::BTreeSet;

#[test]
fn names_are_those_of_one_format() {
    let names = FORMATS.iter().flat_map(|format| {
        std::iter::once(&format.name).chain(format.aliases).copied().collect::<Vec<_>>()
    });
    let mut seen = BTreeSet::new();
    for name in names {
        assert!(seen.insert(name), "two formats are called {name}");
    }
}

#[test]
fn every_format_is_documented_and_its_example_is_a_source() {
    for format in FORMATS {
        assert!(!format.record.is_empty() && !format.keys.is_empty(), "{}", format.name);
        let parsed = ParsedSource::from_yaml(format.example).unwrap();
        assert_eq!(parsed.format.name(), format.name);
        assert!(FileFormat::with_defaults(format.name).is_some() || !format.parameters.is_empty());
    }
}

/// A parameter that is read and not declared would be missing in the documentation and in other
/// languages; one that is declared and not read would be refused.
#[test]
fn the_declared_parameters_are_those_that_parsing_reads() {
    for format in FORMATS {
        let node = SyntaxNode::parse(format.example).unwrap();
        let mut table = MappingReader::new("`source`", &node).unwrap();
        FileFormat::parse_source("`source`", &mut table).unwrap();
        let mut read: BTreeSet<&str> = table.asked().iter().copied().collect();
        for other in FORMATS {
            read.remove(other.name);
            other.aliases.iter().for_each(|alias| assert!(read.remove(alias)));
        }
        read.remove("features");
        let declared: BTreeSet<&str> = format.parameters.iter().map(|p| p.name).collect();
        assert_eq!(read, declared, "{}", format.name);
    }
}

#[test]
fn declared_defaults_change_nothing() {
    for format in FORMATS {
        let Some(defaults) = FileFormat::with_defaults(format.name) else { continue };
        let said = format.parameters.iter().filter_map(|parameter| match parameter.default {
            DefaultValue::Value(value) => Some(format!("{}: {value}", parameter.name)),
            DefaultValue::Required | DefaultValue::Absent => None,
        });
        let said: Vec<String> = said.collect();
        let node = SyntaxNode::parse(&format!("{{ {} }}", said.join(", "))).unwrap();
        let mut table = MappingReader::new("`source`", &node).unwrap();
        let reader = READERS.iter().find(|reader| reader.definition.name == format.name).unwrap();
        reader.defaults(&mut table, &mut FeatureMap::new()).unwrap();
        assert_eq!((reader.parse)(format.name, &mut table, &FeatureMap::new()), Ok(defaults));
        table.finish().unwrap();
    }
}

#[test]
fn the_canonical_form_is_read_back() {
    struct Canonical<'a>(&'a ParsedSource);
    impl serde::Serialize for Canonical<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            self.0.format.write_source(&self.0.features, &mut map)?;
            map.end()
        }
    }
    for format in FORMATS {
        let parsed =
            ParsedSource { paths: Vec::new(), ..ParsedSource::from_yaml(format.example).unwrap() };
        let json = serde_json::to_string(&Canonical(&parsed)).unwrap();
        let node = SyntaxNode::parse_json(&json).unwrap();
        let mut table = MappingReader::new("`source`", &node).unwrap();
        assert_eq!(FileFormat::parse_canonical("`source`", &mut table), Ok(parsed), "{json}");
        table.finish().unwrap();
    }
}

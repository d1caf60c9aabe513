//! [`FileFormat`]: any of the registered formats. This is the one place where code differs by format.

#[cfg(test)]
mod tests;

use crate::{FORMATS, FeatureMap, FormatDefinition, READERS, feature, format::DEFAULTS};

use gristmill_syntax::{
    MappingReader, Parameter, PipelineError, SyntaxNode,
    node::NodeValue,
    table::{nearest, one_of},
};
use serde::ser::SerializeMap;
use std::{collections::BTreeMap, fmt::Write};

/// Most paths of a source.
const MAX_PATHS: usize = 1024;
/// The key of the canonical form for a format's parameters.
const PARAMETERS: &str = "table";

/// Declares [`FileFormat`] and, with the feature `readers`, its reader. Calls go straight to the
/// format's own code: reading a record costs a branch, and no call through a pointer.
macro_rules! formats {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// A registered format with its parameters.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum FileFormat {
            $($name($module::$name)),+
        }

        /// Every format, in the order of the documentation.
        pub const FORMATS: &[&FormatDefinition] =
            &[$(&<$module::$name as SourceFormat>::DEFINITION),+];

        /// The same, with the functions that read their parts of a pipeline file.
        const READERS: &[registry::FormatReader] = &[$(registry::FormatReader {
            definition: &<$module::$name as SourceFormat>::DEFINITION,
            check: <$module::$name as SourceFormat>::check,
            parse: |key, table, features| {
                <$module::$name as SourceFormat>::parse(key, table, features).map(FileFormat::$name)
            },
        }),+];

        $(impl From<$module::$name> for FileFormat {
            fn from(format: $module::$name) -> Self {
                FileFormat::$name(format)
            }
        })+

        impl FileFormat {
            /// The declaration, which all sources of this format share.
            pub fn definition(&self) -> &'static FormatDefinition {
                match self {
                    $(FileFormat::$name(_) => &<$module::$name as SourceFormat>::DEFINITION),+
                }
            }

            /// Names everything that decides where the records of a file are.
            pub fn index_name(&self) -> String {
                match self {
                    $(FileFormat::$name(format) => format.index_name()),+
                }
            }

            pub(crate) fn write<M: serde::ser::SerializeMap>(
                &self,
                map: &mut M,
            ) -> Result<(), M::Error> {
                match self {
                    $(FileFormat::$name(format) => format.write(map)),+
                }
            }
        }

        /// Finds the features of a pipeline in stored records; feature i goes to cell i.
        #[cfg(feature = "readers")]
        #[derive(Debug)]
        pub enum RecordReader {
            $($name(<$module::$name as ReadableFormat>::Reader)),+
        }

        #[cfg(feature = "readers")]
        impl RecordReader {
            /// The reader of a source's records.
            pub fn new<'a>(source: impl Into<RecordReaderInput<'a>>) -> Self {
                let source = source.into();
                match source.format {
                    $(FileFormat::$name(format) => RecordReader::$name(format.reader(source.features))),+
                }
            }

            /// Checks a stored record and finds its features. Returns what cells refer to, and the
            /// bytes of the features' values.
            ///
            /// # Errors
            /// The record's fault, in one line.
            #[inline]
            pub fn read<'a>(
                &self,
                stored: &'a [u8],
                cells: &mut [gristmill_kernel::FieldCell],
            ) -> Result<(&'a [u8], usize), String> {
                match self {
                    $(RecordReader::$name(reader) => {
                        let record = reader.checked(stored)?;
                        Ok((record, reader.find(record, cells)?))
                    }),+
                }
            }

            /// The record as a person wants to see it; any bytes are accepted.
            pub fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
                match self {
                    $(RecordReader::$name(reader) => reader.raw(stored)),+
                }
            }
        }

        #[cfg(feature = "readers")]
        impl FileFormat {
            /// How the records of a file are found.
            pub(crate) fn index_kind(&self, limits: SourceLimits) -> IndexKind {
                match self {
                    $(FileFormat::$name(format) => format.index_kind(limits)),+
                }
            }

            /// Bytes that a record has in its file beside those that its index counts.
            pub(crate) fn framing_bytes(&self) -> u32 {
                match self {
                    $(FileFormat::$name(_) => <$module::$name as ReadableFormat>::FRAMING_BYTES),+
                }
            }

            /// Whether a file that begins with `head`, 12 bytes, is of this format and not compressed.
            pub(crate) fn begins(&self, head: &[u8]) -> bool {
                match self {
                    $(FileFormat::$name(_) => <$module::$name as ReadableFormat>::begins(head)),+
                }
            }

            /// A file of these records, which have the same keys; none if the format cannot hold
            /// them.
            #[cfg(any(test, feature = "samples"))]
            pub fn sample(&self, rows: &[samples::SampleRow]) -> Option<Vec<u8>> {
                match self {
                    $(FileFormat::$name(format) => format.sample(rows)),+
                }
            }

            /// The names of columns that a source gives itself.
            pub(crate) fn columns(&self) -> &[String] {
                match self {
                    $(FileFormat::$name(format) => format.columns()),+
                }
            }
        }
    };
}

pub(crate) use formats;

/// A format as pipeline files are read.
pub(crate) struct FormatReader {
    pub(crate) definition: &'static FormatDefinition,
    pub(crate) check: fn(&crate::Feature) -> Result<(), String>,
    pub(crate) parse:
        fn(&str, &mut MappingReader<'_>, &FeatureMap) -> Result<crate::FileFormat, PipelineError>,
}

impl FormatReader {
    /// Reads what stands in for missing values, if its records may lack some.
    fn defaults(
        &self,
        table: &mut MappingReader<'_>,
        features: &mut FeatureMap,
    ) -> Result<(), PipelineError> {
        let asked = self.definition.has_defaults().then(|| table.get(DEFAULTS.name)).flatten();
        asked.map_or(Ok(()), |node| feature::defaults(node, features))
    }
}

/// One dataset of a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedSource {
    /// As the author wrote them; empty in the canonical form.
    pub paths: Vec<String>,
    pub format: crate::FileFormat,
    pub features: FeatureMap,
}

impl ParsedSource {
    /// The `source` in a YAML text.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn from_yaml(yaml: &str) -> Result<Self, PipelineError> {
        let node = SyntaxNode::parse(yaml)?;
        let mut table = MappingReader::new("`source`", &node)?;
        let parsed = crate::FileFormat::parse_source("`source`", &mut table)?;
        table.finish()?;
        Ok(parsed)
    }
}

impl<'a> From<&'a ParsedSource> for crate::RecordReaderInput<'a> {
    fn from(ParsedSource { format, features, .. }: &'a ParsedSource) -> Self {
        crate::RecordReaderInput { format, features }
    }
}

impl crate::FileFormat {
    /// The key of `source` that names its files.
    pub fn name(&self) -> &'static str {
        self.definition().name
    }

    /// The format called `name` with default parameters; none if there is no such format.
    pub fn with_defaults(name: &str) -> Option<Self> {
        let format = READERS.iter().find(|format| format.definition.name == name)?;
        (format.parse)(name, &mut MappingReader::empty(name, None), &FeatureMap::new()).ok()
    }

    /// Reads one dataset, which messages call `what`, as authors write it.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn parse_source(
        what: &str,
        table: &mut MappingReader<'_>,
    ) -> Result<ParsedSource, PipelineError> {
        let (key, reader, path) = named(what, table, true)?;
        let paths = match &path.value {
            NodeValue::Seq(paths) if (1..=MAX_PATHS).contains(&paths.len()) => {
                paths.iter().map(|path| table.text(key, path)).collect::<Result<_, _>>()?
            }
            NodeValue::Seq(_) => {
                let wanted = format!("a path, or a list of 1 to {MAX_PATHS}");
                return Err(table.wrong(key, path, &wanted));
            }
            _ => vec![table.text(key, path)?],
        };
        let mut features = match (table.get("features"), reader.definition.default_features()) {
            (Some(node), _) => feature::features(node, reader.check)?,
            (None, Some(features)) => features,
            (None, None) => feature::features(table.require("features")?, reader.check)?,
        };
        reader.defaults(table, &mut features)?;
        let format = (reader.parse)(key, table, &features)?;
        Ok(ParsedSource { paths, format, features })
    }

    /// Reads one dataset of the canonical form.
    ///
    /// # Errors
    /// If [`write_source`](Self::write_source) has not written it.
    pub fn parse_canonical(
        what: &str,
        table: &mut MappingReader<'_>,
    ) -> Result<ParsedSource, PipelineError> {
        let (key, reader, node) = named(what, table, false)?;
        let mut features = feature::features(node, reader.check)?;
        let empty = SyntaxNode { value: NodeValue::Null, line: None, column: None };
        let written = match reader.definition.parameters {
            [] => None,
            _ => table.get(PARAMETERS),
        };
        let mut parameters =
            MappingReader::new(format!("`{PARAMETERS}`"), written.unwrap_or(&empty))?;
        reader.defaults(&mut parameters, &mut features)?;
        let format = (reader.parse)(key, &mut parameters, &features)?;
        parameters.finish()?;
        Ok(ParsedSource { paths: Vec::new(), format, features })
    }

    /// Writes one dataset of the canonical form, which has no paths.
    pub fn write_source<M: SerializeMap>(
        &self,
        features: &FeatureMap,
        map: &mut M,
    ) -> Result<(), M::Error> {
        map.serialize_entry(self.name(), features)?;
        let defaults: BTreeMap<&str, &str> = features
            .iter()
            .filter_map(|(name, feature)| Some((name.as_str(), feature.default.as_deref()?)))
            .collect();
        // Formats that had no parameters once keep their fingerprint.
        let is_plain =
            defaults.is_empty() && Self::with_defaults(self.name()).as_ref() == Some(self);
        if self.definition().parameters.is_empty() || (is_plain && self.name() != "csv") {
            return Ok(());
        }
        map.serialize_entry(PARAMETERS, &Written { format: self, defaults })
    }
}

/// The parameters of a format.
struct Written<'a> {
    format: &'a crate::FileFormat,
    defaults: BTreeMap<&'a str, &'a str>,
}

impl serde::Serialize for Written<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.format.write(&mut map)?;
        if self.format.definition().has_defaults() {
            map.serialize_entry(DEFAULTS.name, &self.defaults)?;
        }
        map.end()
    }
}

/// The one format that a dataset names: the key, the format, and the value of the key.
fn named<'a>(
    what: &str,
    table: &mut MappingReader<'a>,
    with_aliases: bool,
) -> Result<(&'static str, &'static FormatReader, &'a SyntaxNode), PipelineError> {
    let mut found = Vec::new();
    for reader in READERS {
        let aliases = if with_aliases { reader.definition.aliases } else { &[] };
        for key in std::iter::once(&reader.definition.name).chain(aliases) {
            found.extend(table.get(key).map(|node| (*key, reader, node)));
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let paths: Vec<String> = names.iter().map(|name| format!("`{name}: PATH`")).collect();
            let entries = table.entries()?;
            let meant = entries.iter().find_map(|(name, ..)| Some((name, nearest(name, &names)?)));
            let meant = meant.map_or(String::new(), |(name, meant)| {
                format!("; it has `{name}`, did you mean `{meant}`?")
            });
            let paths = one_of(&paths);
            Err(table.error(format!("{what} needs {paths}, the files to read{meant}")))
        }
        [(first, ..), (second, _, node), ..] => Err(node.error(format!(
            "{what} names both `{first}` and `{second}`; a dataset has one format, and `zip` is for \
             several datasets side by side"
        ))),
    }
}

// The documentation of the formats, from their definitions.

/// The section that follows the tables.
const PATHS: &str = "## Paths";

/// A table of all formats, then a table of the parameters of each format that has any.
fn tables() -> Vec<String> {
    let mut out = "| `source` | records | keys of its features |\n|---|---|---|\n".to_owned();
    for format in FORMATS {
        let paths: Vec<String> = std::iter::once(&format.name)
            .chain(format.aliases)
            .map(|name| format!("`{name}: PATH`"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {} | {} | {} |", paths.join(", "), format.record, format.keys);
    }
    let with_parameters = FORMATS.iter().filter(|format| !format.parameters.is_empty());
    let parameters = with_parameters.map(|format| {
        let mut out = format!("| beside `{}` | value | default | meaning |\n", format.name);
        out.push_str("|---|---|---|---|\n");
        for Parameter { name, kind, default, doc } in format.parameters {
            let _ = writeln!(out, "| `{name}` | {kind} | {default} | {doc} |");
        }
        out
    });
    std::iter::once(out).chain(parameters).collect()
}

/// Returns the text of `docs/sources.md` with its tables replaced by those of the definitions. A
/// table is recognised by its first line; one that is missing comes before the section of paths.
///
/// # Errors
/// The text lacks that section.
pub fn with_tables(page: &str) -> Result<String, String> {
    let mut page = page.to_owned();
    for table in tables() {
        let head = table.lines().next().unwrap_or_default();
        let Some(start) = page.find(head) else {
            let before = page.find(PATHS);
            let before = before.ok_or_else(|| format!("docs/sources.md has no `{PATHS}`"))?;
            page.insert_str(before, &format!("{table}\n"));
            continue;
        };
        let length = page[start..].find("\n\n").map_or(page.len() - start, |length| length + 1);
        page.replace_range(start..start + length, &table);
    }
    Ok(page)
}

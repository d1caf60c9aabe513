//! `csv`: text files with a line of values for each record.

#[cfg(feature = "readers")]
pub(crate) mod reader;

use crate::{FeatureMap, FileNameRules, FormatDefinition, SourceFormat, format::DEFAULTS};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{
    MappingReader, Parameter, ParameterKind, PipelineError, SyntaxNode,
    node::{NodeValue, shown},
    table::{absent, or},
};
use serde::ser::SerializeMap;

/// The key under which tables with tabs between values are named.
const TSV: &str = "tsv";
/// Most columns of a line.
const MAX_COLUMNS: usize = 4096;

const PARAMETERS: &[Parameter] = &[
    or(
        "delimiter",
        ParameterKind::Other("one ASCII character"),
        "\",\"",
        "The character between values; a tab by default for `tsv`.",
    ),
    or("header", ParameterKind::Bool, "true", "Whether the first line names the columns."),
    or("quotes", ParameterKind::Bool, "true", "Whether values may be quoted with `\"`."),
    absent(
        "columns",
        ParameterKind::List(&ParameterKind::Text),
        "The names of all columns, with `header: false`.",
    ),
    or(
        "missing",
        ParameterKind::List(&ParameterKind::Text),
        "[]",
        "Texts, beside an empty one, that stand for a missing value.",
    ),
    DEFAULTS,
];

/// How a file of lines is divided into values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CsvLayout {
    /// One ASCII character between values.
    pub delimiter: u8,
    /// The first line names the columns.
    pub header: bool,
    /// Values may be quoted with `"`, and then hold delimiters, line ends and `""` for `"`.
    pub quotes: bool,
}

/// Text files with a line of values for each record (RFC 4180); a key is a column's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csv {
    pub layout: CsvLayout,
    /// The names of all columns, of files without a header.
    pub columns: Vec<String>,
    /// Texts, beside none at all, that stand for a value that is missing.
    pub missing: Vec<String>,
}

impl SourceFormat for Csv {
    const DEFINITION: FormatDefinition = FormatDefinition {
        aliases: &[TSV],
        record: "lines of values (RFC 4180); quoted values may span lines",
        keys: "the names in the first line, or `columns`",
        parameters: PARAMETERS,
        example: "{ csv: x, header: false, columns: [i, f, text], defaults: { i: 0 }, \
                  features: { i: { dtype: i64 }, f: { dtype: f32, shape: [-1] }, \
                  text: { dtype: bytes } } }",
        cost: DeclaredCost::new(400, 2_500),
        ..FormatDefinition::new(
            "csv",
            FileNameRules::new("CSV", &["csv", "tsv", "tab", "txt", "text"]),
        )
    };

    fn parse(
        name: &str,
        table: &mut MappingReader<'_>,
        features: &FeatureMap,
    ) -> Result<Self, PipelineError> {
        let delimiter = match table.get("delimiter") {
            Some(node) => self::delimiter("`delimiter`", node)?,
            None if name == TSV => b'\t',
            None => b',',
        };
        let header = table.bool("header", true)?;
        let quotes = table.bool("quotes", true)?;
        let columns = columns(table, header, features)?;
        let missing = texts(table, "missing", MAX_COLUMNS)?;
        Ok(Csv { layout: CsvLayout { delimiter, header, quotes }, columns, missing })
    }

    fn index_name(&self) -> String {
        let CsvLayout { delimiter, header, quotes } = self.layout;
        format!("csv-{delimiter:02x}{}{}", u8::from(header), u8::from(quotes))
    }

    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Csv { layout: CsvLayout { delimiter, header, quotes }, columns, missing } = self;
        map.serialize_entry("delimiter", &char::from(*delimiter))?;
        map.serialize_entry("header", header)?;
        map.serialize_entry("quotes", quotes)?;
        map.serialize_entry("columns", columns)?;
        map.serialize_entry("missing", missing)
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for Csv {
    type Reader = reader::CsvRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::CsvRecordReader::new(self, features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        let scanner = reader::CsvScanner::new(self.layout, limits);
        crate::IndexKind::ScanTable(self.layout, Box::new(scanner))
    }

    fn columns(&self) -> &[String] {
        &self.columns
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        let keys: Vec<&str> = rows.first()?.iter().map(|(key, _)| *key).collect();
        let mut lines = format!("{}\n", keys.join(","));
        for row in rows {
            let value = |(_, value): &(&str, crate::samples::SampleValue)| {
                format!("\"{}\"", value.text().replace('"', "\"\""))
            };
            lines += &row.iter().map(value).collect::<Vec<_>>().join(",");
            lines.push('\n');
        }
        Some(lines.into_bytes())
    }
}

/// The names of columns: those of the files' own header, or `columns`.
fn columns(
    table: &mut MappingReader<'_>,
    header: bool,
    features: &FeatureMap,
) -> Result<Vec<String>, PipelineError> {
    let columns = texts(table, "columns", MAX_COLUMNS)?;
    match (header, columns.is_empty()) {
        (true, false) => {
            return Err(table.error(
                "the header of its files names the columns: leave out `columns`, or say \
                 `header: false`",
            ));
        }
        (false, true) => {
            return Err(table.error(
                "without a header, `columns` must name the values of a line, such as [id, text]",
            ));
        }
        _ => {}
    }
    if let Some(feature) = features.values().find(|feature| {
        !header && columns.iter().filter(|column| **column == feature.key).count() != 1
    }) {
        return Err(table
            .error(format!("key {} of `features` is not one of `columns`", shown(&feature.key))));
    }
    Ok(columns)
}

/// The texts of a list, which are any; none if it is left out.
pub(crate) fn texts(
    table: &mut MappingReader<'_>,
    key: &'static str,
    most: usize,
) -> Result<Vec<String>, PipelineError> {
    let Some(node) = table.get(key) else { return Ok(Vec::new()) };
    match &node.value {
        NodeValue::Seq(items) if items.len() <= most => {
            let text = |item: &SyntaxNode| match &item.value {
                NodeValue::Str(text) => Ok(text.clone()),
                _ => table.text(key, item),
            };
            items.iter().map(text).collect()
        }
        _ => Err(table.wrong(key, node, &format!("a list of at most {most} texts"))),
    }
}

/// The character between values; `what` is the parameter in messages.
///
/// # Errors
/// It is not one ASCII character, or has a meaning of its own, as quotes and line ends.
pub fn delimiter(what: &str, node: &SyntaxNode) -> Result<u8, PipelineError> {
    match &node.value {
        NodeValue::Str(text)
            if let &[byte] = text.as_bytes()
                && byte.is_ascii()
                && !matches!(byte, b'"' | b'\n' | b'\r' | b'\0') =>
        {
            Ok(byte)
        }
        _ => Err(node.error(format!(
            "{what} must be one ASCII character such as \";\" or \"\\t\", not {}",
            node.shown()
        ))),
    }
}

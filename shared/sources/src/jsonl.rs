//! `jsonl`: text files with one JSON object a line.

#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use reader::JsonlRecordReader;

use crate::{FeatureMap, FileNameRules, FormatDefinition, SourceFormat, format::DEFAULTS};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{MappingReader, PipelineError};

/// One JSON object a line; a key is that of the object, `a.b` also the key `b` of the object under
/// `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jsonl;

impl SourceFormat for Jsonl {
    const DEFINITION: FormatDefinition = FormatDefinition {
        record: "lines that are not blank, each a JSON object",
        keys: "keys of the object; `a.b` is `b` of the object under `a`",
        example: "{ jsonl: x, defaults: { i: 0 }, features: { i: { dtype: i64 }, \
                  f: { key: a.f, dtype: f32, shape: [2, 2] }, image: { dtype: bytes } } }",
        parameters: &[DEFAULTS],
        cost: DeclaredCost::new(500, 2_500),
        ..FormatDefinition::new(
            "jsonl",
            FileNameRules::new("JSON lines", &["json", "jsonl", "ndjson", "txt", "text"]),
        )
    };

    fn parse(_: &str, _: &mut MappingReader<'_>, _: &FeatureMap) -> Result<Self, PipelineError> {
        Ok(Jsonl)
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for Jsonl {
    type Reader = reader::JsonlRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::JsonlRecordReader::new(features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        crate::IndexKind::ScanText(Box::new(reader::JsonlScanner::new(limits)))
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        use crate::samples::SampleValue;
        let json = |value: &SampleValue| match value {
            SampleValue::Ints(values) => Some(format!("{values:?}")),
            SampleValue::Floats(values) => Some(format!("{values:?}")),
            SampleValue::Text(text) => serde_json::to_string(text).ok(),
        };
        let mut lines = String::new();
        for row in rows {
            let entry =
                |(key, value): &(&str, SampleValue)| Some(format!("\"{key}\":{}", json(value)?));
            let entries: Option<Vec<String>> = row.iter().map(entry).collect();
            lines += &format!("{{{},\"unread\":{{}}}}\n", entries?.join(","));
        }
        Some(lines.into_bytes())
    }
}

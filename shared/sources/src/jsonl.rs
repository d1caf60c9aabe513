//! `jsonl`: text files with one JSON object a line.

#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use reader::Extractor;

use crate::{Definition, Features, Files, SourceFormat};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{PipelineError, Table};

/// One JSON object a line; a key is that of the object, `a.b` also the key `b` of the object under
/// `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jsonl;

impl SourceFormat for Jsonl {
    const DEFINITION: Definition = Definition {
        record: "lines that are not blank, each a JSON object",
        keys: "keys of the object; `a.b` is `b` of the object under `a`",
        example: "{ jsonl: x, features: { i: { dtype: i64 }, \
                  f: { key: a.f, dtype: f32, shape: [2, 2] }, image: { dtype: bytes } } }",
        cost: DeclaredCost::new(500, 2_500),
        ..Definition::new(
            "jsonl",
            Files::new("JSON lines", &["json", "jsonl", "ndjson", "txt", "text"]),
        )
    };

    fn parse(_: &str, _: &mut Table<'_>, _: &Features) -> Result<Self, PipelineError> {
        Ok(Jsonl)
    }
}

#[cfg(feature = "readers")]
impl crate::Records for Jsonl {
    type Reader = reader::Extractor;

    fn reader(&self, features: &Features) -> Self::Reader {
        reader::Extractor::new(features)
    }

    fn index_kind(&self, limits: crate::Limits) -> crate::IndexKind {
        crate::IndexKind::ScanText(Box::new(reader::Scanner::new(limits)))
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::Row]) -> Option<Vec<u8>> {
        use crate::samples::Value;
        let json = |value: &Value| match value {
            Value::Ints(values) => Some(format!("{values:?}")),
            Value::Floats(values) => Some(format!("{values:?}")),
            Value::Text(text) => serde_json::to_string(text).ok(),
        };
        let mut lines = String::new();
        for row in rows {
            let entry = |(key, value): &(&str, Value)| Some(format!("\"{key}\":{}", json(value)?));
            let entries: Option<Vec<String>> = row.iter().map(entry).collect();
            lines += &format!("{{{},\"unread\":{{}}}}\n", entries?.join(","));
        }
        Some(lines.into_bytes())
    }
}

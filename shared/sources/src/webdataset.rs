//! `webdataset`: tar files whose members make records.

#[cfg(feature = "readers")]
pub(crate) mod links;
#[cfg(feature = "readers")]
pub(crate) mod reader;
#[cfg(feature = "readers")]
mod tar;

use crate::{Feature, FeatureMap, FileNameRules, FormatDefinition, SourceFormat, format::DEFAULTS};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{MappingReader, PipelineError, node::shown};

/// Members of a tar file that share a name up to its first dot are one record, and the rest of the
/// name, in lower case, is the key. `jpg;png` is whichever of them is there, `*.png` the one that ends so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebDataset;

impl SourceFormat for WebDataset {
    const DEFINITION: FormatDefinition = FormatDefinition {
        record: "members of a tar file that share a name up to its first dot",
        keys: "the rest of the name, in lower case: `jpg`, `cls`; `jpg;png` is whichever is present, `*.png` \
               the one that ends so; numbers are text or `.npy`",
        example: "{ webdataset: x, defaults: { i: 0 }, features: { i: { key: cls, dtype: i64 }, \
                  f: { key: txt;json, dtype: f32, shape: [3] } } }",
        parameters: &[DEFAULTS],
        cost: DeclaredCost::new(1_000, 200),
        ..FormatDefinition::new(
            "webdataset",
            FileNameRules::new("a tar file", &["tar", "tbz2", "tgz", "txz", "tzst"]),
        )
    };

    fn parse(_: &str, _: &mut MappingReader<'_>, _: &FeatureMap) -> Result<Self, PipelineError> {
        Ok(WebDataset)
    }

    fn check(feature: &Feature) -> Result<(), String> {
        let name = |name: &str| !name.is_empty() && !name.contains(['/', '\\', '*']);
        let is_key = |part: &str| name(part.strip_prefix("*.").unwrap_or(part));
        if feature.key.split(';').all(|part| is_key(part) && part == part.to_lowercase()) {
            Ok(())
        } else {
            Err(format!(
                "key {} names no member: give what follows the first dot of its name, in lower \
                 case, such as `jpg` or `jpg;png`, or `*.` and its end, such as `*.png`",
                shown(&feature.key)
            ))
        }
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for WebDataset {
    type Reader = reader::WebDatasetRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::WebDatasetRecordReader::new(features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        crate::IndexKind::Scan(Box::new(reader::WebDatasetScanner::new(limits)))
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        let mut archive = ::tar::Builder::new(Vec::new());
        for (i, row) in rows.iter().enumerate() {
            for (key, value) in row {
                let content = value.text();
                let mut header = ::tar::Header::new_gnu();
                header.set_size(content.len() as u64);
                header.set_mode(0o644);
                archive
                    .append_data(&mut header, format!("{i:06}.{key}"), content.as_bytes())
                    .ok()?;
            }
        }
        archive.into_inner().ok()
    }
}

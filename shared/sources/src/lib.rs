//! Formats of files of records, one file or folder each.
//!
//! A format implements [`SourceFormat`]: its name and parameters in pipeline files, the keys that
//! its features have, and the names of its files. With the feature `readers` it also implements
//! [`ReadableFormat`]: how its files are indexed, and how a record is read. The list at the end of this
//! file names every format; nothing else in the project does.

pub mod csv;
#[cfg(feature = "readers")]
#[cfg(test)]
mod damage_tests;
mod feature;
#[cfg(feature = "readers")]
mod file_index;
mod format;
#[cfg(feature = "readers")]
mod frames;
#[cfg(feature = "readers")]
mod gzip;
pub mod images;
#[cfg(feature = "readers")]
mod index_builder;
pub mod jsonl;
#[cfg(feature = "readers")]
mod lengths;
pub mod npy;
pub mod parquet;
#[cfg(feature = "readers")]
mod records;
mod registry;
#[cfg(all(feature = "readers", any(test, feature = "samples")))]
pub mod samples;
pub mod tfrecord;
#[cfg(feature = "readers")]
mod varint;
pub mod webdataset;
pub mod words;

pub use feature::{
    Feature, FeatureDType, FeatureMap, MAX_FEATURES, MAX_VALUES, check_name, dimensions, features,
    serialize_shape,
};
#[cfg(feature = "readers")]
pub use file_index::{BlockRange, FileIndex, OpenedRecords};
pub use format::{FileNameRules, FormatDefinition, RecordReaderInput, SourceFormat};
#[cfg(feature = "readers")]
pub use index_builder::IndexBuilder;
#[cfg(feature = "readers")]
pub use records::{
    FooterIndexer, IndexKind, ReadRecord, ReadableFormat, RecordScanner, SourceError, SourceLimits,
};
pub use registry::{ParsedSource, with_tables};

registry::formats! {
    tfrecord::TfRecord,
    webdataset::WebDataset,
    images::Images,
    jsonl::Jsonl,
    csv::Csv,
    parquet::Parquet,
    npy::Npy,
}

//! Where elements come from, and which of their features are kept.

use crate::{
    COPY_FIELD, DType, FieldSchema, KEY_FIELD, PipelineError, Schema,
    node::{Node, Value, shown},
    table::{Table, nearest, one_of},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use std::collections::BTreeMap;

mod csv;
mod zip;

pub use csv::{CsvLayout, CsvValues};

/// Most features kept of a record.
const MAX_FEATURES: usize = 256;
/// Longest field name, in bytes: what a tensor name may have.
const MAX_NAME_BYTES: usize = 200;
/// Most values of one feature of one record: what a reader makes room for.
pub const MAX_VALUES: u32 = 1 << 20;
/// Most dimensions of a feature.
const MAX_DIMS: usize = 8;
/// Most paths of a source.
const MAX_PATHS: usize = 1024;
/// How an unknown dimension is written.
const UNKNOWN: i32 = -1;
/// How messages call the whole source.
const WHAT: &str = "`source`";

/// How records are stored, and under which keys their features are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TFRecord files of `tf.Example` messages; keys are those of the example.
    TfRecord,
    /// WebDataset tar files: members that share a name up to its first dot are one record, and the
    /// rest of the name, in lower case, is the key. `jpg;png` is whichever of them is there.
    WebDataset,
    /// One image a file, in a directory for each class: `image` is its content, `label` the place of
    /// its directory's name among all, in byte order.
    Images,
    /// Text files with one JSON object a line; a key is that of the object, `a.b` also the key `b` of
    /// the object under `a`.
    Jsonl,
    /// Text files with a line of values for each record (RFC 4180); a key is a column's name.
    Csv(CsvLayout),
    /// Parquet files; keys are columns, `a.b` the column `b` of the group `a`.
    Parquet,
}

impl Format {
    pub const ALL: [Format; 6] = [
        Format::TfRecord,
        Format::WebDataset,
        Format::Images,
        Format::Jsonl,
        Format::Csv(CsvLayout::COMMAS),
        Format::Parquet,
    ];

    /// The key of `source` that names the files.
    pub const fn name(self) -> &'static str {
        match self {
            Format::TfRecord => "tfrecord",
            Format::WebDataset => "webdataset",
            Format::Images => "images",
            Format::Jsonl => "jsonl",
            Format::Csv(_) => "csv",
            Format::Parquet => "parquet",
        }
    }

    /// Names what decides where the records of a file are: files that are read otherwise have other records.
    pub fn index_name(self) -> String {
        match self {
            Format::Csv(CsvLayout { delimiter, header, quotes }) => {
                format!("csv-{delimiter:02x}{}{}", u8::from(header), u8::from(quotes))
            }
            _ => self.name().to_owned(),
        }
    }
}

/// Keys of a record of [`Format::Images`].
pub const IMAGE_KEY: &str = "image";
pub const LABEL_KEY: &str = "label";

/// The types a feature of a record can be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureDType {
    /// One byte string.
    Bytes,
    I64,
    U64,
    F32,
    F64,
}

impl FeatureDType {
    /// The same as a field's dtype.
    pub const fn dtype(self) -> DType {
        match self {
            FeatureDType::Bytes => DType::Bytes,
            FeatureDType::I64 => DType::I64,
            FeatureDType::U64 => DType::U64,
            FeatureDType::F32 => DType::F32,
            FeatureDType::F64 => DType::F64,
        }
    }
}

/// One feature of a record, kept as a field of the element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its key in the record.
    pub key: String,
    pub dtype: FeatureDType,
    /// Dimensions, the product of which is the number of values; empty for a scalar. The first may
    /// be unknown: records then differ, and hold whole multiples of the others' product. It
    /// serialises as -1.
    #[serde(serialize_with = "serialize_shape")]
    pub shape: Vec<Option<u32>>,
}

impl Feature {
    /// How many values a record has; none if records differ.
    pub fn values(&self) -> Option<usize> {
        self.shape.iter().try_fold(1, |n, dim| Some(n * dim.map(|dim| dim as usize)?))
    }

    /// How many values one entry of the first dimension has: 1 for scalars and vectors.
    pub fn inner_values(&self) -> usize {
        self.shape.iter().skip(1).flatten().map(|dim| *dim as usize).product()
    }

    /// Checks how many values a record has.
    ///
    /// # Errors
    /// What is wrong, to be put behind the feature's name: for example "has 3 values, the pipeline
    /// reads 4".
    pub fn check_values(&self, have: usize) -> Result<(), String> {
        let inner = self.inner_values();
        match self.values() {
            Some(wanted) if have == wanted => Ok(()),
            Some(wanted) => Err(format!("has {have} values, the pipeline reads {wanted}")),
            None if have > MAX_VALUES as usize => {
                Err(format!("has {have} values; the limit is {MAX_VALUES}"))
            }
            None if have.is_multiple_of(inner) => Ok(()),
            None => Err(format!("has {have} values, which is no multiple of the {inner} of a row")),
        }
    }
}

fn serialize_shape<S: Serializer>(shape: &[Option<u32>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shape.iter().map(|dim| dim.map_or(i64::from(UNKNOWN), i64::from)))
}

/// Files of records.
///
/// Serialises without paths: where the data lies does not change what it is, which the dataset's
/// own fingerprint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path, directory, glob or `s3://bucket/prefix`, or several of them, whose files follow each
    /// other; empty when read from the canonical form.
    pub paths: Vec<String>,
    pub format: Format,
    pub features: BTreeMap<String, Feature>,
    /// Of [`Format::Csv`].
    pub csv: CsvValues,
    /// How often its records come, one time after the other: of a dataset in a zip, else once.
    pub repeat: u32,
    /// Datasets that are zipped to it: record i of it goes with record i of each of them, as far as the
    /// shortest has any. Their features are fields beside its own.
    pub zipped: Vec<Source>,
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.is_zip() {
            true => {
                map.serialize_entry(zip::KEY, &self.members().map(zip::Alone).collect::<Vec<_>>())?
            }
            false => self.entries(&mut map)?,
        }
        map.end()
    }
}

impl Source {
    /// A dataset that is read by itself.
    pub const fn alone(
        paths: Vec<String>,
        format: Format,
        features: BTreeMap<String, Feature>,
    ) -> Self {
        let csv = CsvValues { columns: Vec::new(), missing: Vec::new(), defaults: BTreeMap::new() };
        Source { paths, format, features, csv, repeat: 1, zipped: Vec::new() }
    }

    /// What it is read as, without others that are zipped to it.
    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry(self.format.name(), &self.features)?;
        match self.format {
            Format::Csv(layout) => {
                map.serialize_entry(csv::TABLE, &csv::Written::new(layout, &self.csv))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is several datasets side by side.
    pub fn is_zip(&self) -> bool {
        !self.zipped.is_empty()
    }

    /// The datasets side by side, this one first.
    pub fn members(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(self).chain(&self.zipped)
    }

    /// How the records of all datasets are stored, for naming them: other records are found in the
    /// same files of another format.
    pub fn stored_as(&self) -> String {
        self.members().map(|source| source.format.index_name()).collect::<Vec<_>>().join("+")
    }

    /// What is read, for saying how that of two pipelines differs: of a zip, dataset by dataset.
    pub(crate) fn described(&self) -> serde_json::Value {
        // Plain data without maps of other keys than text always has a JSON form.
        if !self.is_zip() {
            return serde_json::to_value(self).unwrap_or_default();
        }
        let dataset = |(i, source): (usize, &Source)| {
            let value = serde_json::to_value(zip::Alone(source)).unwrap_or_default();
            (format!("dataset {i}"), value)
        };
        serde_json::Value::Object((1..).zip(self.members()).map(dataset).collect())
    }

    /// The `source` of a pipeline file.
    pub(crate) fn parse(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new(WHAT, node)?;
        match table.get(zip::KEY) {
            Some(datasets) => {
                table.finish()?;
                zip::parse(datasets, zip::parse_member)
            }
            None => {
                let source = Self::parse_alone(WHAT, &mut table)?;
                table.finish()?;
                Ok(source)
            }
        }
    }

    /// One dataset, which messages call `what`.
    fn parse_alone(what: &str, table: &mut Table<'_>) -> Result<Self, PipelineError> {
        let tsv = table.get(csv::TSV);
        let (format, path) = match tsv {
            Some(path) => (Format::Csv(CsvLayout::COMMAS), path),
            None => format_of(what, table)?,
        };
        let paths = match &path.value {
            Value::Seq(paths) if (1..=MAX_PATHS).contains(&paths.len()) => paths
                .iter()
                .map(|path| table.text(format.name(), path))
                .collect::<Result<_, _>>()?,
            Value::Seq(_) => {
                let wanted = format!("a path, or a list of 1 to {MAX_PATHS}");
                return Err(table.wrong(format.name(), path, &wanted));
            }
            _ => vec![table.text(format.name(), path)?],
        };
        let features = match (format, table.get("features")) {
            (_, Some(node)) => parse_features(format, node)?,
            (Format::Images, None) => image_features(),
            (_, None) => parse_features(format, table.require("features")?)?,
        };
        let source = Source::alone(paths, format, features);
        let delimiter = if tsv.is_some() { b'\t' } else { b',' };
        source.with_values(table, delimiter)
    }

    /// The same, as its table of text is written.
    fn with_values(self, table: &mut Table<'_>, delimiter: u8) -> Result<Self, PipelineError> {
        match self.format {
            Format::Csv(_) => {
                let (format, csv) = csv::parse(table, delimiter, &self.features)?;
                Ok(Source { format, csv, ..self })
            }
            _ => Ok(self),
        }
    }

    /// The `source` of the canonical form.
    pub(crate) fn parse_canonical(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new(WHAT, node)?;
        if let Some(datasets) = table.get(zip::KEY) {
            table.finish()?;
            return zip::parse(datasets, zip::parse_canonical_member);
        }
        let source = Self::parse_canonical_alone(WHAT, &mut table)?;
        table.finish()?;
        Ok(source)
    }

    fn parse_canonical_alone(what: &str, table: &mut Table<'_>) -> Result<Self, PipelineError> {
        let (format, node) = format_of(what, table)?;
        let source = Source::alone(Vec::new(), format, parse_features(format, node)?);
        match (format, table.get(csv::TABLE)) {
            (Format::Csv(_), Some(node)) => {
                let mut values = Table::new("`table`", node)?;
                let source = source.with_values(&mut values, b',')?;
                values.finish()?;
                Ok(source)
            }
            _ => Ok(source),
        }
    }

    /// The schema of what it yields.
    pub(crate) fn schema(&self) -> Schema {
        let field = |(name, feature): (&String, &Feature)| {
            let (dtype, shape) = (feature.dtype.dtype(), feature.shape.clone());
            (name.clone(), FieldSchema { dtype, shape, range: None })
        };
        let features = self.members().flat_map(|source| &source.features);
        Schema { fields: features.map(field).collect() }
    }
}

/// The one format that a dataset names, and what stands under its name.
fn format_of<'a>(what: &str, table: &mut Table<'a>) -> Result<(Format, &'a Node), PipelineError> {
    let named = Format::ALL.map(|format| Some((format, table.get(format.name())?)));
    match named.into_iter().flatten().collect::<Vec<_>>().as_slice() {
        [one] => Ok(*one),
        [] => {
            let paths = Format::ALL.map(|format| format!("`{}: PATH`", format.name()));
            let paths = one_of(&paths.each_ref().map(String::as_str));
            let names = Format::ALL.map(Format::name);
            let entries = table.entries()?;
            let meant = entries.iter().find_map(|(name, ..)| Some((name, nearest(name, &names)?)));
            let meant = meant.map_or(String::new(), |(name, meant)| {
                format!("; it has `{name}`, did you mean `{meant}`?")
            });
            Err(table.error(format!("{what} needs {paths}, the files to read{meant}")))
        }
        [(first, _), (second, node), ..] => Err(node.error(format!(
            "{what} names both `{}` and `{}`; a dataset has one format, and `zip` is for several \
             datasets side by side",
            first.name(),
            second.name()
        ))),
    }
}

/// What [`Format::Images`] yields unless told otherwise: all it has.
fn image_features() -> BTreeMap<String, Feature> {
    let feature = |key: &str, dtype| {
        (key.to_owned(), Feature { key: key.to_owned(), dtype, shape: Vec::new() })
    };
    [feature(IMAGE_KEY, FeatureDType::Bytes), feature(LABEL_KEY, FeatureDType::I64)].into()
}

/// What a key must be for a format to have it.
fn check_key(format: Format, feature: &Feature) -> Result<(), String> {
    let Feature { key, dtype, shape } = feature;
    match (format, key.as_str(), dtype) {
        (Format::TfRecord, _, FeatureDType::U64 | FeatureDType::F64) => {
            Err(format!("a tf.Example has i64 and f32, not {}: read one of them", dtype.dtype()))
        }
        (Format::TfRecord | Format::Jsonl | Format::Csv(_) | Format::Parquet, ..) => Ok(()),
        (Format::WebDataset, ..) => {
            let name = |name: &str| !name.is_empty() && !name.contains(['/', '\\']);
            match key.split(';').all(|part| name(part) && part == part.to_lowercase()) {
                true => Ok(()),
                false => Err(format!(
                    "key {} names no member: give what follows the first dot of its name, in lower \
                     case, such as `jpg` or `jpg;png`",
                    shown(key)
                )),
            }
        }
        (Format::Images, IMAGE_KEY, FeatureDType::Bytes)
        | (Format::Images, LABEL_KEY, FeatureDType::I64)
            if shape.is_empty() =>
        {
            Ok(())
        }
        (Format::Images, ..) => Err(format!(
            "an image folder has `image` (bytes) and `label` (i64), not {} ({}{})",
            shown(key),
            dtype.dtype(),
            if shape.is_empty() { "" } else { ", with a shape" }
        )),
    }
}

/// The `features` of a source, or of an operator that finds them in what a source yields.
pub(crate) fn parse_features(
    format: Format,
    node: &Node,
) -> Result<BTreeMap<String, Feature>, PipelineError> {
    let table = Table::new("`features`", node)?;
    let entries = table.entries()?;
    if entries.is_empty() || entries.len() > MAX_FEATURES {
        return Err(node.error(format!(
            "`features` names 1 to {MAX_FEATURES} fields, not {}; for example \
             `image: {{ key: image/encoded, dtype: bytes }}`",
            entries.len()
        )));
    }
    let mut features = BTreeMap::new();
    for (name, key, value) in entries {
        check_name(&name).map_err(|message| key.error(message))?;
        let feature = feature(&name, value)?;
        check_key(format, &feature).map_err(|message| value.error(message))?;
        if features.insert(name.clone(), feature).is_some() {
            return Err(key.error(format!("`features` names {} twice", shown(&name))));
        }
    }
    Ok(features)
}

fn feature(name: &str, node: &Node) -> Result<Feature, PipelineError> {
    let mut table = Table::new(format!("feature {}", shown(name)), node)?;
    let key = match table.get("key") {
        Some(node) => table.text("key", node)?,
        None => name.to_owned(),
    };
    use FeatureDType::{Bytes, F32, F64, I64, U64};
    let all = [Bytes, I64, U64, F32, F64];
    let choices = all.map(|dtype| (dtype.dtype().name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &choices)?;
    let shape = match table.get("shape") {
        Some(node) => shape(name, dtype, node)?,
        None => Vec::new(),
    };
    table.finish()?;
    Ok(Feature { key, dtype, shape })
}

/// The `shape` of a feature: whole numbers, of which the first may be -1.
fn shape(name: &str, dtype: FeatureDType, node: &Node) -> Result<Vec<Option<u32>>, PipelineError> {
    let feature = || format!("feature {}", shown(name));
    let Value::Seq(items) = &node.value else {
        let found = node.shown();
        return Err(node.error(format!(
            "{} `shape` must be a list of dimensions such as [3] or [-1, 80], not {found}",
            feature()
        )));
    };
    let mut shape = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let known = match item.value {
            Value::Int(dim) if i == 0 && dim == i128::from(UNKNOWN) => None,
            Value::Int(dim) => {
                Some(u32::try_from(dim).ok().filter(|dim| (1..=MAX_VALUES).contains(dim)))
            }
            _ => Some(None),
        };
        shape.push(match known {
            None => None,
            Some(Some(dim)) => Some(dim),
            Some(None) => {
                return Err(item.error(format!(
                    "{} `shape` must be a whole number from 1 to {MAX_VALUES}, the first also -1 \
                     where records differ, not {}",
                    feature(),
                    item.shown()
                )));
            }
        });
    }
    let values = shape.iter().flatten().try_fold(1_u32, |n, dim| n.checked_mul(*dim));
    if shape.len() > MAX_DIMS || values.is_none_or(|n| n > MAX_VALUES) {
        return Err(node.error(format!(
            "{} has more than {MAX_DIMS} dimensions or {MAX_VALUES} values",
            feature()
        )));
    }
    if dtype == FeatureDType::Bytes && !shape.is_empty() {
        return Err(node.error(format!(
            "{} is bytes, which is one byte string: leave out `shape`",
            feature()
        )));
    }
    Ok(shape)
}

/// Field names become tensor names, keys of mappings and names of Python attributes.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let plain = name.bytes().all(letter) && !name.starts_with(|c: char| c.is_ascii_digit());
    if name == KEY_FIELD || name == COPY_FIELD || name.starts_with("__") {
        return Err(format!("field {} is reserved: names starting with __ are ours", shown(name)));
    }
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !plain {
        return Err(format!(
            "field {} is not a name: use 1 to {MAX_NAME_BYTES} letters, digits and _, not \
             starting with a digit",
            shown(name)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

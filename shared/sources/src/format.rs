//! The declaration of a format, without reading a file.

use crate::{Feature, FeatureDType, FeatureMap, FileFormat};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{MappingReader, Parameter, ParameterKind, PipelineError, table::or};
use serde::{Serialize, ser::SerializeMap};

/// A way to store records in files.
///
/// The value of a format holds the parameters that a pipeline file gives it, checked and with
/// defaults filled in.
pub trait SourceFormat: Clone + std::fmt::Debug + PartialEq + Eq + Send + Sync + Sized {
    const DEFINITION: FormatDefinition;

    /// Reads the parameters that stand beside the path. `name` is the key of the path:
    /// the format's name or one of its [aliases](FormatDefinition::aliases).
    ///
    /// # Errors
    /// The parameter that is wrong, with its line.
    fn parse(
        name: &str,
        table: &mut MappingReader<'_>,
        features: &FeatureMap,
    ) -> Result<Self, PipelineError>;

    /// Checks the key, the dtype and the shape of a feature.
    ///
    /// # Errors
    /// Why records of this format do not have it.
    fn check(_feature: &Feature) -> Result<(), String> {
        Ok(())
    }

    /// Names everything that decides where the records of a file are. Indices are stored under it.
    fn index_name(&self) -> String {
        Self::DEFINITION.name.to_owned()
    }

    /// Writes the parameters of the canonical form; [`parse`](Self::parse) reads them back.
    fn write<M: SerializeMap>(&self, _map: &mut M) -> Result<(), M::Error> {
        Ok(())
    }
}

/// The parameter of every format whose records may lack a value.
pub(crate) const DEFAULTS: Parameter = or(
    "defaults",
    ParameterKind::Map(&ParameterKind::Other("a number, a text or a list of numbers")),
    "{}",
    "By field, the value to read in place of one that is missing or null. Without it the record is bad.",
);

/// The format and the features that a source reads.
#[derive(Clone, Copy, Debug)]
pub struct RecordReaderInput<'a> {
    pub format: &'a FileFormat,
    pub features: &'a FeatureMap,
}

/// A format as data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FormatDefinition {
    /// The key of `source` that names the files.
    pub name: &'static str,
    /// Other keys for it, which change defaults.
    pub aliases: &'static [&'static str],
    /// For the documentation: what a record is.
    pub record: &'static str,
    /// For the documentation: what the key of a feature names.
    pub keys: &'static str,
    /// Keys of `source` beside the path and `features`.
    pub parameters: &'static [Parameter],
    /// The features of a source that gives none; empty if a source must give them.
    pub features: &'static [(&'static str, FeatureDType)],
    /// Whether each file is one record. Such files are grouped into packs, which have no other index.
    pub is_packed: bool,
    /// Why its records cannot be zipped with others, if they cannot.
    pub zip_refusal: Option<&'static str>,
    pub files: FileNameRules,
    /// Reading a record.
    pub cost: DeclaredCost,
    /// A `source` for the documentation and for tests, as YAML on one line.
    pub example: &'static str,
}

/// File names of a format.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FileNameRules {
    /// A file, in messages.
    pub noun: &'static str,
    /// Extensions of its files, in lower case. A directory's files with another format's extension are left out.
    pub extensions: &'static [&'static str],
    /// Whether a directory's files with any other extension are left out.
    pub only_these: bool,
    /// Whether names that begin with `_` are data.
    pub reads_underscored: bool,
    /// How to read files that a directory leaves out.
    pub remedy: &'static str,
}

impl FileNameRules {
    /// Files that are recognised by their content, and whose names say little.
    pub const fn new(noun: &'static str, extensions: &'static [&'static str]) -> Self {
        FileNameRules {
            noun,
            extensions,
            only_these: false,
            reads_underscored: false,
            remedy: "a glob that matches them reads them",
        }
    }
}

impl FormatDefinition {
    /// A format without aliases or parameters, whose features a source must give.
    pub const fn new(name: &'static str, files: FileNameRules) -> Self {
        FormatDefinition {
            name,
            aliases: &[],
            record: "",
            keys: "",
            parameters: &[],
            features: &[],
            is_packed: false,
            zip_refusal: None,
            files,
            cost: DeclaredCost::UNKNOWN,
            example: "",
        }
    }

    /// Whether a source may say what to read in place of missing values.
    pub(crate) fn has_defaults(&self) -> bool {
        self.parameters.contains(&DEFAULTS)
    }

    /// Its features by default, if it has such.
    pub fn default_features(&self) -> Option<FeatureMap> {
        let feature = |&(key, dtype): &(&str, FeatureDType)| {
            (
                key.to_owned(),
                Feature { key: key.to_owned(), dtype, shape: Vec::new(), default: None },
            )
        };
        (!self.features.is_empty()).then(|| self.features.iter().map(feature).collect())
    }
}

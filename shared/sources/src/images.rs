//! `images`: one image a file, in a directory for each class.

#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use reader::{BadImage, ImageFolder, ImagePacks, pack_index, packs, read_pack};
#[cfg(feature = "readers")]
pub use reader::{LABEL_BYTES, index, record_bytes};

use crate::{
    Feature, FeatureDType, FeatureMap, FileNameRules, FormatDefinition, SourceFormat, csv::texts,
};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{
    MappingReader, Parameter, ParameterKind, PipelineError,
    node::{NodeValue, shown},
    table::absent,
};
use serde::ser::SerializeMap;

/// The key of the content of a file.
pub const IMAGE_KEY: &str = "image";
/// The key of the class: the place of its directory's name among all, in byte order, or in the list of classes.
pub const LABEL_KEY: &str = "label";
/// The parameter that names the classes.
const CLASSES: &str = "classes";
/// Most classes that a pipeline names.
const MAX_CLASSES: usize = 100_000;

const PARAMETERS: &[Parameter] = &[absent(
    CLASSES,
    ParameterKind::Other("a list of names, or a folder of this machine"),
    "The classes in order of their labels: their names, or the folder whose directories they are, such as that of the \
     training images. By default the directories that are found, those without an image included.",
)];

/// The classes of an image folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageClasses {
    /// Its directories, in byte order.
    #[default]
    Found,
    /// These directories, in this order.
    Named(Vec<String>),
    /// The directories of another folder, in byte order.
    OfFolder(String),
}

/// One image a file, in a directory for each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    pub classes: ImageClasses,
}

impl Images {
    /// The same, with the classes of another folder in place of its path. `list` returns the names of its directories.
    pub fn with_classes<E>(
        self,
        list: impl FnOnce(&str) -> Result<Vec<String>, E>,
    ) -> Result<Self, E> {
        Ok(match &self.classes {
            ImageClasses::OfFolder(path) => {
                let mut names = list(path)?;
                names.sort_unstable();
                Self { classes: ImageClasses::Named(names) }
            }
            ImageClasses::Found | ImageClasses::Named(_) => self,
        })
    }
}

impl SourceFormat for Images {
    const DEFINITION: FormatDefinition = FormatDefinition {
        record: "one image per file (JPEG, PNG, WebP, BMP, TIFF, PGM, PPM), in one directory per \
                 class",
        keys: "`image` and `label` (the position of its directory's name among all); `features` \
               may be omitted",
        parameters: PARAMETERS,
        features: &[(IMAGE_KEY, FeatureDType::Bytes), (LABEL_KEY, FeatureDType::I64)],
        is_packed: true,
        zip_refusal: Some(
            "`images` cannot be zipped: a folder has no order that other records could follow; \
             put the images into tar or TFRecord files",
        ),
        example: "{ images: x, classes: [a, b] }",
        cost: DeclaredCost::new(20_000, 300),
        ..FormatDefinition::new(
            "images",
            FileNameRules {
                // Those that torchvision's `ImageFolder` takes.
                only_these: true,
                // A class may well be called so.
                reads_underscored: true,
                remedy: "JPEG, PNG, WebP, BMP, TIFF, PGM and PPM are read: convert others",
                ..FileNameRules::new(
                    "an image",
                    &["bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"],
                )
            },
        )
    };

    fn parse(
        _: &str,
        table: &mut MappingReader<'_>,
        _: &FeatureMap,
    ) -> Result<Self, PipelineError> {
        let classes = match table.get(CLASSES) {
            None => ImageClasses::Found,
            Some(node) => match &node.value {
                NodeValue::Str(path) if !path.is_empty() => ImageClasses::OfFolder(path.clone()),
                _ => {
                    let names = texts(table, CLASSES, MAX_CLASSES)?;
                    let mut sorted = names.clone();
                    sorted.sort_unstable();
                    if let Some([twice, _]) = sorted.array_windows().find(|[a, b]| a == b) {
                        return Err(node.error(format!("`{CLASSES}` names {} twice", shown(twice))));
                    }
                    ImageClasses::Named(names)
                }
            },
        };
        Ok(Images { classes })
    }

    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        match &self.classes {
            ImageClasses::Found => Ok(()),
            ImageClasses::Named(names) => map.serialize_entry(CLASSES, names),
            ImageClasses::OfFolder(path) => map.serialize_entry(CLASSES, path),
        }
    }

    fn check(feature: &Feature) -> Result<(), String> {
        let Feature { key, dtype, shape, .. } = feature;
        match (key.as_str(), dtype) {
            (IMAGE_KEY, FeatureDType::Bytes) | (LABEL_KEY, FeatureDType::I64)
                if shape.is_empty() =>
            {
                Ok(())
            }
            _ => Err(format!(
                "an image folder has `image` (bytes) and `label` (i64), not {} ({}{})",
                shown(key),
                dtype.dtype(),
                if shape.is_empty() { "" } else { ", with a shape" }
            )),
        }
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for Images {
    type Reader = reader::ImageRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::ImageRecordReader::new(features)
    }

    fn index_kind(&self, _: crate::SourceLimits) -> crate::IndexKind {
        crate::IndexKind::Packed
    }
}

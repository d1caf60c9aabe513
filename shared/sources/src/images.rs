//! `images`: one image a file, in a directory for each class.

#[cfg(feature = "readers")]
mod packs;
#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use packs::{BadImage, pack_index, packs, read_pack};
#[cfg(feature = "readers")]
pub use reader::{LABEL_BYTES, index, record_bytes};

use crate::{Definition, Feature, FeatureDType, Features, Files, SourceFormat};
use gristmill_syntax::{PipelineError, Table, node::shown};

/// The key of the content of a file.
pub const IMAGE_KEY: &str = "image";
/// The key of the class: the place of its directory's name among all, in byte order.
pub const LABEL_KEY: &str = "label";

/// One image a file, in a directory for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images;

impl SourceFormat for Images {
    const DEFINITION: Definition = Definition {
        record: "one image per file (JPEG, PNG, WebP, BMP, TIFF, PGM, PPM), in one directory per \
                 class",
        keys: "`image` and `label` (the position of its directory's name among all); `features` \
               may be omitted",
        features: &[(IMAGE_KEY, FeatureDType::Bytes), (LABEL_KEY, FeatureDType::I64)],
        is_packed: true,
        zip_refusal: Some(
            "`images` cannot be zipped: a folder has no order that other records could follow; \
             put the images into tar or TFRecord files",
        ),
        example: "{ images: x }",
        ..Definition::new(
            "images",
            Files {
                // Those that torchvision's `ImageFolder` takes.
                only_these: true,
                // A class may well be called so.
                reads_underscored: true,
                remedy: "JPEG, PNG, WebP, BMP, TIFF, PGM and PPM are read: convert others",
                ..Files::new(
                    "an image",
                    &["bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"],
                )
            },
        )
    };

    fn parse(_: &str, _: &mut Table<'_>, _: &Features) -> Result<Self, PipelineError> {
        Ok(Images)
    }

    fn check(feature: &Feature) -> Result<(), String> {
        let Feature { key, dtype, shape } = feature;
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
impl crate::Records for Images {
    type Reader = reader::Extractor;

    fn reader(&self, features: &Features) -> Self::Reader {
        reader::Extractor::new(features)
    }

    fn index_kind(&self, _: crate::Limits) -> crate::IndexKind {
        crate::IndexKind::Packed
    }
}

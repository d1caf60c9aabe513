//! Imports for the files of operators.

#[cfg(feature = "kernels")]
pub(crate) use crate::kernels::{
    boxes, canvas, channels as channels_of, dtype_bytes, in_place, item_bytes as item_bytes_of,
    masks, pixel_bytes, planes::vectorised, sometimes, transform, value_bytes, warp,
};
pub(crate) use crate::parameters::*;
pub(crate) use crate::*;
#[cfg(feature = "kernels")]
pub(crate) use gristmill_kernel::{FusedKernel, Kernel, OutputSize, ValueView};
pub(crate) use gristmill_model::{DatasetOp, DeclaredCost};
pub(crate) use gristmill_pipeline::{
    AssetReference, AuthoredNumber, Batching, CachePointSettings, Cardinality, ExactEffect,
    Feature, FieldDType, FieldSchema, ImageFields, ImageInput, LengthBuckets, MAX_BATCH_BYTES,
    MAX_BATCH_SIZE, MAX_SIDE, MappingReader, Operator, OperatorDeclaration, OperatorDefinition,
    OperatorEffect, OperatorScope, Parameter, ParameterKind, PipelineError, Randomness, SchemaFlow,
    SequencePadding, TouchedFields, ValueRange, check_field_name,
    node::{NodeValue, SyntaxNode, shown},
    parameters::{self, optional},
    table::nearest,
    widened,
};
#[cfg(feature = "kernels")]
pub(crate) use gristmill_pipeline::{BoxFields, BoxFormat, FeatureDType, KernelInput};
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use std::collections::BTreeMap;

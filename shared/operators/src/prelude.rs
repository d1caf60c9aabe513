//! Imports for the files of operators.

#[cfg(feature = "kernels")]
pub(crate) use crate::kernels::{
    boxes, canvas, channels as channels_of, dtype_bytes, in_place, item_bytes as item_bytes_of,
    masks, pixel_bytes, planes::vectorised, sometimes, transform, value_bytes, warp,
};
pub(crate) use crate::parameters::*;
pub(crate) use crate::*;
#[cfg(feature = "kernels")]
pub(crate) use gristmill_kernel::{Fused, Kernel, Made, View};
pub(crate) use gristmill_model::{DatasetOp, DeclaredCost};
pub(crate) use gristmill_pipeline::{
    Asset, Batching, Buckets, CacheHere, Cardinality, DType, Declaration, Define, Effect,
    ExactEffect, Feature, FieldSchema, Fields, Flow, Given, Kind, MAX_BATCH_BYTES, MAX_BATCH_SIZE,
    MAX_SIDE, Number, Operator, Padding, Parameter, PipelineError, Randomness, Scope, Table,
    Touched, ValueRange, check_field_name,
    node::{Node, Value, shown},
    parameters::{self, optional},
    table::nearest,
    widened,
};
#[cfg(feature = "kernels")]
pub(crate) use gristmill_pipeline::{BoxFormat, Boxes, FeatureDType, KernelInput};
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use std::collections::BTreeMap;

//! The interface of an operator, and an operator in its place.
//!
//! A file of an operator implements two traits: [`Define`], what holds of all its instances, and
//! [`Operator`], what holds of one with its parameters. The pipeline asks questions of [`Operator`] and
//! knows no operator by type or name. Most questions have an answer that fits most operators.

use crate::{
    Asset, Batching, Declaration, FieldSchema, Fields, Flow, Parameter, PipelineError, Table,
};
use gristmill_kernel::{Assets, Fused, Kernel, MoveBoxes};
use gristmill_model::DatasetOp;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
};

/// The definition of an operator.
pub trait Define: Operator + Clone + PartialEq + Serialize + Sized {
    const DECLARATION: Declaration;

    /// All keys that [`parse`](Self::parse) reads, in the order of the documentation.
    const PARAMETERS: &'static [Parameter];

    /// Reads the parameters and fills in defaults.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError>;
}

/// Facts that follow from an operator's [`Define`], by a blanket implementation.
pub trait Described: Any + fmt::Debug + Send + Sync {
    fn declaration(&self) -> &'static Declaration;
    /// Name and version, as the canonical form has them.
    fn identity(&self) -> (&str, u32) {
        let declaration = self.declaration();
        (declaration.name, declaration.version)
    }
    /// The parameters as one JSON object, defaults filled in.
    fn params_json(&self) -> String;
    fn clone_boxed(&self) -> Box<dyn Operator>;
    fn equals(&self, other: &dyn Operator) -> bool;
}

impl<T: Define> Described for T {
    fn declaration(&self) -> &'static Declaration {
        const { &T::DECLARATION }
    }

    fn params_json(&self) -> String {
        crate::pipeline::to_json(self)
    }

    fn clone_boxed(&self) -> Box<dyn Operator> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Operator) -> bool {
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// An operator with its parameters.
pub trait Operator: Described {
    /// Turns the schema of its input into that of its output.
    ///
    /// # Errors
    /// Why it cannot, in one line for the author of the pipeline.
    fn infer(&self, flow: &mut Flow) -> Result<(), String>;

    /// The field it reads; none if it leaves all fields alone.
    fn field(&self) -> Option<&str>;

    /// The field it writes: the one it reads, unless it makes another. None if it writes several.
    fn output(&self) -> Option<&str> {
        self.field()
    }

    /// Every field it writes.
    fn outputs(&self) -> Vec<&str> {
        match self.together() {
            Some(fields) => fields.all().collect(),
            None => self.output().into_iter().collect(),
        }
    }

    /// The fields it moves with one draw, if it moves several.
    fn together(&self) -> Option<&Fields> {
        None
    }

    fn together_mut(&mut self) -> Option<&mut Fields> {
        None
    }

    /// How it makes batches of elements, if it does.
    fn batching(&self) -> Option<Batching> {
        None
    }

    /// Sets the number of elements of its batches, if it makes batches.
    fn set_batch_size(&mut self, _: u32) {}

    /// The change to the sequence of records, if it works on that.
    fn dataset(&self) -> Option<DatasetOp> {
        None
    }

    /// The file it needs beside the pipeline, if it does.
    fn asset(&self) -> Option<&Asset> {
        None
    }

    fn asset_mut(&mut self) -> Option<&mut Asset> {
        None
    }

    /// The place to cache that it is, if it is one.
    fn cache_point(&self) -> Option<CacheHere> {
        None
    }

    /// Elements that it makes of each.
    fn copies(&self) -> u32 {
        1
    }

    /// Bytes of its output that the author estimates, where no schema says.
    fn typical_bytes(&self) -> Option<f64> {
        None
    }

    /// Why it changes nothing where the schema stays the same, if that is so.
    fn does_nothing(&self) -> Option<&'static str> {
        None
    }

    /// Whether its output is meant for delivery, and computing on it is slow.
    fn is_for_delivery(&self) -> bool {
        false
    }

    /// Whether the fetcher can apply it to what was delivered, as far as it changes values or their order
    /// alone.
    fn can_follow_batch(&self) -> bool {
        self.declaration().effect == crate::Effect::Value
    }

    /// Whether it is defined by a user's crate, so that nothing is known of when it refuses a record.
    fn is_external(&self) -> bool {
        false
    }

    /// Leaves `field` out of those it takes away: nobody makes it any more.
    fn forget(&mut self, _: &str) {}

    /// Whether nothing is left for it to do, after [`forget`](Self::forget).
    fn is_empty(&self) -> bool {
        false
    }

    /// Notes what it wrote, after [`infer`](Self::infer).
    fn record_output(&mut self, _: &Flow) {}

    /// The kernel for elements whose field has the schema of `input`.
    ///
    /// # Errors
    /// Why this build or this input has none.
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let name = self.declaration().name;
        Err(format!("`{name}` cannot be compiled: this build does not have it"))
    }

    /// The kernel that moves the boxes of [`together`](Self::together) as [`kernel`](Self::kernel) moves the images.
    fn boxes_kernel(&self) -> Option<Box<dyn MoveBoxes>> {
        None
    }

    /// One kernel that does what this operator and those of `then` do one after the other, cheaper than
    /// all of them. Every one of `then` works on the output of the one before, in place of it. `given` is
    /// the schema that this operator is given.
    fn fuse(&self, _then: &[&dyn Operator], _given: &FieldSchema) -> Option<Fused> {
        None
    }

    /// Whether it can use `content`, that of its [`asset`](Self::asset).
    ///
    /// # Errors
    /// Why not, in one line that does not name the file.
    fn check_asset(&self, _content: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

impl dyn Operator {
    /// The operator as one of type `T`.
    pub fn downcast_ref<T: Operator>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The settings of a place to cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHere {
    /// Whether the author allows to reuse what was drawn before it.
    pub reuse_random: bool,
}

/// Input to making a kernel, beside the operator's own parameters.
#[derive(Clone, Copy)]
pub struct KernelInput<'a> {
    field: Option<&'a FieldSchema>,
    /// The files that operators name by the hash of their content.
    pub assets: &'a dyn Assets,
}

impl fmt::Debug for KernelInput<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KernelInput").field("field", &self.field).finish_non_exhaustive()
    }
}

impl<'a> KernelInput<'a> {
    /// `field` is the schema of the operator's field; none if it has no field.
    pub fn new(field: Option<&'a FieldSchema>, assets: &'a dyn Assets) -> Self {
        KernelInput { field, assets }
    }

    /// The schema of the operator's field.
    ///
    /// # Errors
    /// If it has none, which no checked pipeline does.
    pub fn field(&self) -> Result<&'a FieldSchema, String> {
        self.field.ok_or_else(|| "an operator cannot be compiled: its field is missing".to_owned())
    }
}

/// An operator with its parameters, of any type. Serialises as its parameters alone.
pub struct Op(Box<dyn Operator>);

impl Op {
    pub fn new(operator: impl Operator) -> Self {
        Op(Box::new(operator))
    }

    /// The operator as one of type `T`.
    pub fn downcast_ref<T: Operator>(&self) -> Option<&T> {
        (*self.0).downcast_ref()
    }

    /// The name used in pipeline files.
    pub fn name(&self) -> &'static str {
        self.declaration().name
    }

    /// The same for one of the images that it moves alone.
    #[must_use]
    pub fn only(&self, image: &str) -> Op {
        let mut op = self.clone();
        if let Some(fields) = op.together_mut() {
            *fields = fields.only(image);
        }
        op
    }

    /// Settles what depends on how its fields were made.
    pub(crate) fn settle(&mut self, flow: &Flow) {
        if let Some(fields) = self.together_mut() {
            fields.find_masks(flow);
        }
    }
}

impl Clone for Op {
    fn clone(&self) -> Self {
        Op(self.0.clone_boxed())
    }
}

impl Deref for Op {
    type Target = dyn Operator;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for Op {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

impl PartialEq for Op {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&**other)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Serialize for Op {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = RawValue::from_string(self.0.params_json());
        json.map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// An operator in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    pub op: Op,
    /// Place in the graph as its author wrote it, from 0: keys the randomness of the operator, so
    /// that moving it does not change what it draws. Places to cache do not count: theirs go down
    /// from `MAX_OPS`, so that adding one changes no draw.
    pub ordinal: u32,
    /// The author forbids moving it.
    pub keep_position: bool,
    /// The author vouches that it may change places with any operator of its field. Says nothing about
    /// results, and so is not part of the canonical form.
    pub assume_commutes: bool,
    /// Line of the pipeline file; none when read from the canonical form.
    pub line: Option<u32>,
}

//! The interface of an operator, and an operator in its place.
//!
//! An operator's file implements two traits: [`OperatorDefinition`] for facts about all its instances, and
//! [`Operator`] for facts about one instance with its parameters. The pipeline calls methods of
//! [`Operator`] and knows no operator by type or name. Most methods have a default that fits most
//! operators.

use crate::{
    AssetReference, Batching, ExactEffect, FieldSchema, ImageFields, MappingReader,
    OperatorDeclaration, OperatorEffect, Parameter, PipelineError, SchemaFlow,
};
use gristmill_kernel::{AssetLoader, FusedKernel, Kernel, MoveBoxes};
use gristmill_model::{DatasetOp, DeclaredCost};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
};

/// The definition of an operator.
pub trait OperatorDefinition: Operator + Clone + PartialEq + Serialize + Sized {
    const DECLARATION: OperatorDeclaration;

    /// All keys that [`parse`](Self::parse) reads, in the order of the documentation.
    const PARAMETERS: &'static [Parameter];

    /// Reads the parameters and fills in defaults.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError>;
}

/// Facts that follow from an operator's [`OperatorDefinition`], by a blanket implementation.
pub trait OperatorFacts: Any + fmt::Debug + Send + Sync {
    fn declaration(&self) -> &'static OperatorDeclaration;
    /// Name and version in the canonical form.
    fn identity(&self) -> (&str, u32) {
        let declaration = self.declaration();
        (declaration.name, declaration.version)
    }
    /// The parameters as a JSON object, with defaults filled in.
    fn params_json(&self) -> String;
    fn clone_boxed(&self) -> Box<dyn Operator>;
    fn equals(&self, other: &dyn Operator) -> bool;
}

impl<T: OperatorDefinition> OperatorFacts for T {
    fn declaration(&self) -> &'static OperatorDeclaration {
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
pub trait Operator: OperatorFacts {
    /// Turns the schema of its input into that of its output, which are the same by default.
    ///
    /// # Errors
    /// The reason why it cannot, in one line for the author of the pipeline.
    fn infer(&self, _: &mut SchemaFlow) -> Result<(), String> {
        Ok(())
    }

    /// The fields it reads and writes.
    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Nothing
    }

    /// The fields of [`TouchedFields::Together`], to record which of them are masks.
    fn fields_mut(&mut self) -> Option<&mut ImageFields> {
        None
    }

    /// How it makes batches, if it does.
    fn batching(&self) -> Option<Batching> {
        None
    }

    /// Sets the batch size, if it makes batches.
    fn set_batch_size(&mut self, _: u32) {}

    /// Its operation on the sequence of records, if it has one.
    fn dataset(&self) -> Option<DatasetOp> {
        None
    }

    /// The file it needs in addition to the pipeline, if any.
    fn asset(&self) -> Option<&AssetReference> {
        None
    }

    fn asset_mut(&mut self) -> Option<&mut AssetReference> {
        None
    }

    /// If it is a cache point: whether the author allows reuse of random results from before it.
    fn cache_point(&self) -> Option<bool> {
        None
    }

    /// Number of elements it makes of each.
    fn copies(&self) -> u32 {
        1
    }

    /// Its CPU time with these parameters.
    fn cost(&self) -> DeclaredCost {
        self.declaration().cost
    }

    /// Whether its time is spent waiting, without a processor.
    fn waits(&self) -> bool {
        false
    }

    /// The author's estimate of its output bytes, for outputs whose size the schema does not have.
    fn typical_bytes(&self) -> Option<f64> {
        None
    }

    /// The reason why it changes nothing when the schema stays the same, if that is so.
    fn does_nothing(&self) -> Option<&'static str> {
        None
    }

    /// Its effect on images, if that is exact to the byte with these parameters. `input` is the
    /// schema of its field. What changes values alone, or mirrors, is exact.
    fn exact_effect(&self, _input: &FieldSchema) -> ExactEffect {
        match self.declaration().effect {
            OperatorEffect::Value => ExactEffect::EachPixel,
            OperatorEffect::Mirror => ExactEffect::Mirror,
            _ => ExactEffect::Unknown,
        }
    }

    /// Whether its output is meant for delivery, and computing on it is slow.
    fn is_for_delivery(&self) -> bool {
        false
    }

    /// Whether the fetcher can apply it to batches, provided that it changes only values or their
    /// order.
    fn can_follow_batch(&self) -> bool {
        self.declaration().effect == OperatorEffect::Value
    }

    /// Whether it is defined by a user's crate. It may then refuse records for unknown reasons.
    fn is_external(&self) -> bool {
        false
    }

    /// Removes `field` from the fields it drops, because no operator makes it any more.
    fn forget(&mut self, _: &str) {}

    /// Whether it has nothing left to do after [`forget`](Self::forget).
    fn is_empty(&self) -> bool {
        false
    }

    /// Records its input schema before [`infer`](Self::infer).
    fn record_input(&mut self, _: &SchemaFlow) {}

    /// Records its output schema after [`infer`](Self::infer).
    fn record_output(&mut self, _: &SchemaFlow) {}

    /// The kernel for elements whose field has the schema of `input`.
    ///
    /// # Errors
    /// The reason why this build or this input has no kernel.
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let name = self.declaration().name;
        Err(format!("`{name}` cannot be compiled: this build does not have it"))
    }

    /// The kernel that moves the boxes of its [`fields`](Self::fields) as [`kernel`](Self::kernel)
    /// moves the images.
    fn boxes_kernel(&self) -> Option<Box<dyn MoveBoxes>> {
        None
    }

    /// A kernel that replaces this operator and those of `then`, and is cheaper than running them
    /// one by one. Each operator of `then` works in place on the previous one's output. `given` is
    /// the schema of this operator's field.
    fn fuse(&self, _then: &[&dyn Operator], _given: &FieldSchema) -> Option<FusedKernel> {
        None
    }

    /// Checks that it can use `content` as its [`asset`](Self::asset).
    ///
    /// # Errors
    /// The reason why not, in one line that does not name the file.
    fn check_asset(&self, _content: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// The fields that an operator reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub enum TouchedFields<'a> {
    /// None: it works on elements as a whole, or on the sequence of records.
    Nothing,
    /// It reads this field and writes none.
    Reads(&'a str),
    /// It replaces this field.
    Replaces(&'a str),
    /// It reads two fields, and replaces `field`.
    Combines { field: &'a str, by: &'a str },
    /// It reads `field` and writes `into`.
    Derives { field: &'a str, into: &'a str },
    /// It reads `field` and writes every field of `into`.
    Parses { field: &'a str, into: Vec<&'a str> },
    /// It moves these images, masks and boxes with one draw.
    Together(&'a ImageFields),
    /// It replaces each of these lists, at least one, by its items.
    Items(&'a [String]),
}

impl dyn Operator {
    /// The field it reads, if any: the first one of several.
    pub fn field(&self) -> Option<&str> {
        match self.fields() {
            TouchedFields::Nothing => None,
            TouchedFields::Reads(field) | TouchedFields::Replaces(field) => Some(field),
            TouchedFields::Combines { field, .. }
            | TouchedFields::Derives { field, .. }
            | TouchedFields::Parses { field, .. } => Some(field),
            TouchedFields::Together(fields) => Some(&fields.field),
            TouchedFields::Items(fields) => fields.first().map(String::as_str),
        }
    }

    /// The lists that it replaces by their items, all of which it reads.
    pub fn lists(&self) -> &[String] {
        match self.fields() {
            TouchedFields::Items(fields) => fields,
            _ => &[],
        }
    }

    /// The second field it reads, if it combines two.
    pub fn by(&self) -> Option<&str> {
        match self.fields() {
            TouchedFields::Combines { by, .. } => Some(by),
            _ => None,
        }
    }

    /// Every field it reads or writes; a field may be there twice.
    pub fn touched(&self) -> Vec<&str> {
        self.field().into_iter().chain(self.by()).chain(self.outputs()).collect()
    }

    /// The field it writes in place of the one it reads, or from it. `None` if it parses several
    /// out of one, or replaces several.
    pub fn output(&self) -> Option<&str> {
        match self.fields() {
            TouchedFields::Nothing
            | TouchedFields::Reads(_)
            | TouchedFields::Parses { .. }
            | TouchedFields::Items(_) => None,
            TouchedFields::Replaces(field) | TouchedFields::Combines { field, .. } => Some(field),
            TouchedFields::Derives { into, .. } => Some(into),
            TouchedFields::Together(fields) => Some(&fields.field),
        }
    }

    /// Every field it writes.
    pub fn outputs(&self) -> Vec<&str> {
        match self.fields() {
            TouchedFields::Parses { into, .. } => into,
            TouchedFields::Together(fields) => fields.all().collect(),
            TouchedFields::Items(fields) => fields.iter().map(String::as_str).collect(),
            _ => self.output().into_iter().collect(),
        }
    }

    /// The fields it moves with one draw, if it can move several.
    pub fn together(&self) -> Option<&ImageFields> {
        match self.fields() {
            TouchedFields::Together(fields) => Some(fields),
            _ => None,
        }
    }

    /// The operator as one of type `T`.
    pub fn downcast_ref<T: Operator>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Inputs for making a kernel, in addition to the operator's parameters.
#[derive(Clone, Copy)]
pub struct KernelInput<'a> {
    field: Option<&'a FieldSchema>,
    by: Option<&'a FieldSchema>,
    /// Files that operators name by the hash of their content.
    pub assets: &'a dyn AssetLoader,
}

impl<'a> KernelInput<'a> {
    /// `field` is the schema of the operator's field, `None` if it has no field.
    pub fn new(field: Option<&'a FieldSchema>, assets: &'a dyn AssetLoader) -> Self {
        KernelInput { field, by: None, assets }
    }

    /// As it is, with the schema of the second field.
    #[must_use]
    pub fn with(self, by: Option<&'a FieldSchema>) -> Self {
        KernelInput { by, ..self }
    }

    /// The schema of the second field of an operator that combines two.
    ///
    /// # Errors
    /// As [`field`](Self::field).
    pub fn by(&self) -> Result<&'a FieldSchema, String> {
        self.by
            .ok_or_else(|| "an operator cannot be compiled: its field `by` is missing".to_owned())
    }

    /// The schema of the operator's field.
    ///
    /// # Errors
    /// If it has none. A checked pipeline never causes this.
    pub fn field(&self) -> Result<&'a FieldSchema, String> {
        self.field.ok_or_else(|| "an operator cannot be compiled: its field is missing".to_owned())
    }
}

/// An operator of any type with its parameters. Serialises as the parameters alone.
pub struct BoxedOperator(Box<dyn Operator>);

impl BoxedOperator {
    /// Puts an operator behind a pointer, so that pipelines hold operators of any type.
    pub fn new(operator: impl Operator) -> Self {
        BoxedOperator(Box::new(operator))
    }

    /// The name used in pipeline files.
    pub fn name(&self) -> &'static str {
        self.declaration().name
    }

    /// Returns the operator for one of its images alone.
    #[must_use]
    pub fn only(&self, image: &str) -> BoxedOperator {
        let mut op = self.clone();
        if let Some(fields) = op.fields_mut() {
            *fields = fields.only(image);
        }
        op
    }

    /// Sets the properties that depend on how its fields were made.
    pub(crate) fn settle(&mut self, flow: &SchemaFlow) {
        if let Some(fields) = self.fields_mut() {
            fields.find_masks(flow);
        }
    }
}

impl Clone for BoxedOperator {
    fn clone(&self) -> Self {
        BoxedOperator(self.0.clone_boxed())
    }
}

impl Deref for BoxedOperator {
    type Target = dyn Operator;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for BoxedOperator {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

impl PartialEq for BoxedOperator {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&**other)
    }
}

impl fmt::Debug for BoxedOperator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Serialize for BoxedOperator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = RawValue::from_string(self.0.params_json());
        json.map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// An operator with its position in a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStage {
    pub op: BoxedOperator,
    /// Position in the author's graph, from 0. Keys the operator's draws, so that moving the
    /// operator does not change them. Cache points count down from `MAX_OPS` instead, so that
    /// adding one changes no draws.
    pub ordinal: u32,
    /// The author forbids moving the operator.
    pub keep_position: bool,
    /// The author vouches that it commutes with any operator on its field. Does not affect results,
    /// so it is not part of the canonical form.
    pub assume_commutes: bool,
    /// Line in the pipeline file; `None` when read from the canonical form.
    pub line: Option<u32>,
}

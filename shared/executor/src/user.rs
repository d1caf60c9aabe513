//! Operators of users: what a crate of their own implements, and the set of them a program is built with.
//!
//! ```
//! use gristmill_executor::{Compiler, user::{Draw, Operators, Output, UserOperator, View}};
//! use gristmill_pipeline::{DType, Declaration, FieldSchema, Pipeline};
//!
//! /// u8 of any shape -> the same, upside down in value.
//! struct Invert;
//!
//! impl UserOperator for Invert {
//!     const DECLARATION: Declaration = Declaration::of_user("acme.invert", 1);
//!     type Params = std::collections::BTreeMap<String, ()>;
//!
//!     fn output(_: &Self::Params, input: &FieldSchema) -> Result<FieldSchema, String> {
//!         match input.dtype {
//!             DType::U8 => Ok(input.clone()),
//!             _ => Err("it takes u8".into()),
//!         }
//!     }
//!
//!     fn new(_: Self::Params, _: &FieldSchema) -> Result<Self, String> {
//!         Ok(Invert)
//!     }
//!
//!     fn run(&self, input: View<'_>, output: &mut Output<'_>, _: &mut Draw) -> Result<(), String> {
//!         let made = output.image(input.size, input.bytes.len())?;
//!         made.iter_mut().zip(input.bytes).for_each(|(to, from)| *to = 255 - from);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let operators = Operators::new().with::<Invert>()?;
//! let yaml = "
//! source: { images: pictures }
//! ops: [decode, resize: { size: 8 }, acme.invert, batch: { size: 4 }]
//! ";
//! let pipeline = Pipeline::parse_with(yaml, &operators.signatures())?;
//! Compiler::new().operators(&operators).compile(&pipeline)?;
//! # Ok(())
//! # }
//! ```

pub use crate::{random::Draw, step::View};

use crate::{
    ExecError,
    cell::Sink,
    step::{Made, Tools, Transform},
};
use gristmill_pipeline::{
    DType, Declaration, FieldSchema, Randomness, Signature, Signatures, ops::Custom,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeMap;

/// An operator that makes one value of one value.
///
/// What it makes must depend on parameters, input and draws alone: not on a clock, a file, another thread or
/// what it was given before. That is what makes batches the same whoever makes them, and what fingerprints
/// name. A panic is the record's error.
pub trait UserOperator: Sized + Send + Sync + 'static {
    /// Its name (`crate.op`), its version, which counts up whenever equal parameters give other results,
    /// whether it draws, and its effect: what it may change places with.
    const DECLARATION: Declaration;

    /// Its parameters, as they stand in the pipeline file beside `field` and `into`. Refuse what you do
    /// not know (`#[serde(deny_unknown_fields)]`), so that a misspelt one is noticed.
    type Params: DeserializeOwned;

    /// The schema of what it makes of a field of schema `input`. Dimensions may be unknown (`None`).
    ///
    /// # Errors
    /// What it cannot do, in one line, for the author of a pipeline.
    fn output(params: &Self::Params, input: &FieldSchema) -> Result<FieldSchema, String>;

    /// The operator, ready to run.
    ///
    /// # Errors
    /// As [`output`](Self::output).
    fn new(params: Self::Params, input: &FieldSchema) -> Result<Self, String>;

    /// Makes the output of one element: as many bytes as its schema says, little-endian, row by row.
    ///
    /// # Errors
    /// What is wrong with the record, in one line; the job's policy decides what becomes of it.
    fn run(&self, input: View<'_>, output: &mut Output<'_>, draw: &mut Draw) -> Result<(), String>;
}

/// Where an operator puts what it makes: ask for room once.
pub struct Output<'a> {
    sink: Option<Sink<'a>>,
    made: Option<Made>,
}

impl std::fmt::Debug for Output<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Output").field("made", &self.made).finish_non_exhaustive()
    }
}

impl<'a> Output<'a> {
    /// Room for a value of `bytes` bytes, all 0.
    ///
    /// # Errors
    /// If there is no such room; or if it was asked for before.
    pub fn take(&mut self, bytes: usize) -> Result<&'a mut [u8], String> {
        self.image([0, 0], bytes)
    }

    /// Room for an image of `size` (height and width in pixels), all 0.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn image(&mut self, size: [usize; 2], bytes: usize) -> Result<&'a mut [u8], String> {
        let sink = self.sink.take().ok_or("the operator asks for room twice")?;
        let room = sink.take(bytes)?;
        // What the room held before may differ from run to run.
        room.fill(0);
        self.made = Some(Made { bytes, size });
        Ok(room)
    }
}

/// An operator of a user as a kernel: of parameters, and the schemas of what it is given and makes.
type Compile = fn(Value, &FieldSchema, FieldSchema) -> Result<Box<dyn Transform>, String>;

/// One operator of a user, whatever its type.
#[derive(Clone, Copy)]
struct Definition {
    signature: Signature,
    compile: Compile,
}

/// The operators of users that a program is built with.
#[derive(Clone, Default)]
pub struct Operators {
    signatures: Signatures,
    known: BTreeMap<&'static str, Definition>,
}

impl std::fmt::Debug for Operators {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.known.keys()).finish()
    }
}

impl Operators {
    pub fn new() -> Self {
        Self::default()
    }

    /// These and `T`.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if its name is taken or no name, or it declares what it cannot be.
    pub fn with<T: UserOperator>(mut self) -> Result<Self, ExecError> {
        let declaration = const { &T::DECLARATION };
        let signature = Signature { declaration, infer: infer::<T> };
        self.signatures = self.signatures.with(signature).map_err(ExecError::Pipeline)?;
        self.known.insert(declaration.name, Definition { signature, compile: compile::<T> });
        Ok(self)
    }

    /// What reading a pipeline file takes of them.
    pub fn signatures(&self) -> Signatures {
        self.signatures.clone()
    }

    /// The operator's name, if this program was built with it.
    pub(crate) fn name(&self, name: &str) -> Option<&'static str> {
        self.known.get_key_value(name).map(|(name, _)| *name)
    }

    /// The effect of `op` on a field of schema `input`.
    pub(crate) fn compile(
        &self,
        op: &Custom,
        input: &FieldSchema,
    ) -> Result<Box<dyn Transform>, ExecError> {
        let Custom { name, version, .. } = op;
        let wrong = |why: String| ExecError::Pipeline(format!("`{name}` {why}"));
        let Some(Definition { signature, compile }) = self.known.get(name.as_str()) else {
            return Err(wrong(format!(
                "version {version} is an operator of a user that this program was not built with; \
                 run the workers of whoever made it"
            )));
        };
        let Declaration { version: known, randomness, .. } = *signature.declaration;
        if *version != known {
            return Err(wrong(format!(
                "is needed in version {version}, this program has {known}; run the workers that \
                 belong to the program that registered the job"
            )));
        }
        let output = (signature.infer)(&op.params_json(), input).map_err(&wrong)?;
        if op.output.as_ref() != Some(&output) || op.randomness != randomness {
            let registered = op.output.as_ref().map_or("nothing".into(), ToString::to_string);
            return Err(wrong(format!(
                "makes {output} in this program and {registered} in the one that registered the \
                 job, of one version; count it up, and build both anew"
            )));
        }
        compile(op.params_json(), input, output).map_err(&wrong)
    }
}

fn params<T: UserOperator>(params: &Value) -> Result<T::Params, String> {
    T::Params::deserialize(params).map_err(|error| error.to_string())
}

fn infer<T: UserOperator>(given: &Value, input: &FieldSchema) -> Result<FieldSchema, String> {
    T::output(&params::<T>(given)?, input)
}

fn compile<T: UserOperator>(
    given: Value,
    input: &FieldSchema,
    output: FieldSchema,
) -> Result<Box<dyn Transform>, String> {
    let op = T::new(params::<T>(&given)?, input)?;
    let random = T::DECLARATION.randomness == Randomness::Random;
    Ok(Box::new(Adapted { op, output, random }))
}

/// An operator of a user as one of ours: whatever it does, what comes out is of its schema.
struct Adapted<T> {
    op: T,
    output: FieldSchema,
    random: bool,
}

impl<T: UserOperator> Transform for Adapted<T> {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let mut output = Output { sink: Some(output), made: None };
        // One that declares no draws has the same everywhere, lest results depend on what no
        // fingerprint knows.
        let mut fixed = Draw::fixed();
        let draw = if self.random { draw } else { &mut fixed };
        self.op.run(input, &mut output, draw).map_err(|why| {
            let why: String = why.chars().take(300).collect();
            why.replace(char::is_control, " ")
        })?;
        let made = output.made.ok_or("the operator made nothing")?;
        match is_of(&self.output, made) {
            true => Ok(made),
            false => {
                let (Made { bytes, size: [height, width] }, schema) = (made, &self.output);
                Err(format!(
                    "the operator made {bytes} bytes, an image of {height} x {width} if it is one, \
                     which is no {schema}"
                ))
            }
        }
    }
}

/// Whether what was made can be a value of this schema.
fn is_of(schema: &FieldSchema, made: Made) -> bool {
    if schema.dtype == DType::Bytes {
        return true;
    }
    if let Some(bytes) = schema.element_bytes() {
        return made.bytes as u64 == bytes;
    }
    match (schema.item_bytes(), schema.shape.as_slice(), schema.dtype.size_bytes()) {
        (Some(item), _, _) => (made.bytes as u64).is_multiple_of(item.max(1)),
        // An image whose size differs from one to the next.
        (None, [height, width, Some(channels)], Some(value)) => {
            let [h, w] = made.size.map(|side| side as u64);
            let is = |dim: &Option<u32>, side| dim.is_none_or(|dim| u64::from(dim) == side);
            let bytes = h.checked_mul(w).and_then(|n| n.checked_mul(u64::from(*channels) * value));
            is(height, h) && is(width, w) && bytes == Some(made.bytes as u64)
        }
        _ => false,
    }
}

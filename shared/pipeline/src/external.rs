//! Operators of users in a pipeline, for programs that may not be built with them.
//!
//! Planning a job needs an operator's declaration and its output schema. The canonical form has
//! both, so only workers must be built with the operator.

use crate::{
    BoxedOperator, ElementSchema, ExactEffect, FieldDType, FieldSchema, KernelInput, MAX_SIDE,
    MappingReader, Operator, OperatorDeclaration, OperatorEffect, OperatorFacts, PipelineError,
    Randomness, RegisteredOperator, SchemaFlow, TouchedFields, ValueRange,
    node::{NodeValue, SyntaxNode, shown},
};

use gristmill_kernel::{
    InPlaceKernel, Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel,
    ValueView,
};
use gristmill_model::DeclaredCost;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Keys that every operator has, which are not its own parameters.
const NOT_PARAMETERS: [&str; 4] = ["field", "into", "keep_position", "assume_commutes"];
/// Maximum number of dimensions of its output, as for a feature.
const MAX_DIMS: usize = 8;
const EFFECTS: [(&str, OperatorEffect); 7] = [
    ("opaque", OperatorEffect::Opaque),
    ("value", OperatorEffect::Value),
    ("colour", OperatorEffect::Colour),
    ("mirror", OperatorEffect::Mirror),
    ("resample", OperatorEffect::Resample),
    ("window", OperatorEffect::Window),
    ("warp", OperatorEffect::Warp),
];
const RANDOMNESS: [(&str, Randomness); 2] =
    [("deterministic", Randomness::Deterministic), ("random", Randomness::Random)];

/// Declarations for operators that the program was not built with, by effect, pinning and
/// randomness.
static DECLARED: [OperatorDeclaration; 28] = {
    let mut all = [OperatorDeclaration::new("custom", 1); 28];
    let mut i = 0;
    while i < all.len() {
        all[i].randomness = RANDOMNESS[i % 2].1;
        all[i].pins_position = i / 2 % 2 == 1;
        all[i].effect = EFFECTS[i / 4].1;
        i += 1;
    }
    all
};

/// An operator of a user, which makes one value of one value.
#[derive(Clone, Debug, Serialize)]
pub struct ExternalOperator {
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    version: u32,
    field: String,
    /// The field it writes; `None` if it writes the one it reads.
    into: Option<String>,
    /// Its own parameters as the author gave them.
    params: BTreeMap<String, Json>,
    randomness: Randomness,
    effect: OperatorEffect,
    pins_position: bool,
    #[serde(skip_serializing_if = "is_unknown", serialize_with = "as_pair")]
    cost: DeclaredCost,
    /// The schema of the field it writes, once known.
    output: Option<FieldSchema>,
    /// `None` in a program that was not built with the operator.
    #[serde(skip)]
    entry: Option<RegisteredOperator>,
    /// The operator itself, as the author wrote it.
    #[serde(skip)]
    operator: Option<BoxedOperator>,
}

impl ExternalOperator {
    /// Reads the parameters from a pipeline file.
    pub(crate) fn parse(
        entry: &RegisteredOperator,
        params: &mut MappingReader<'_>,
    ) -> Result<Self, PipelineError> {
        let OperatorDeclaration { name, version, randomness, effect, pins_position, .. } =
            *entry.declaration;
        let operator = entry.parse(params)?;
        let (Some(field), Some(output)) = (operator.field(), operator.output()) else {
            return Err(params.error(format!("`{name}` must read one field and write one")));
        };
        let into = (field != output).then(|| output.to_owned());
        let mut own = own_parameters(params)?;
        own.retain(|key, _| !NOT_PARAMETERS.contains(&key.as_str()));
        Ok(ExternalOperator {
            name: name.to_owned(),
            version,
            field: field.to_owned(),
            into,
            params: own,
            randomness,
            effect,
            pins_position,
            cost: operator.cost(),
            output: None,
            entry: Some(*entry),
            operator: Some(operator),
        })
    }

    /// Reads the canonical form. `entry` is this program's version of the operator, if it has one.
    pub(crate) fn parse_canonical(
        name: &str,
        version: u32,
        entry: Option<&RegisteredOperator>,
        params: &mut MappingReader<'_>,
    ) -> Result<Self, PipelineError> {
        crate::registry::check_name(name).map_err(|message| params.error(message))?;
        let field = params.field()?;
        let into = into(params)?;
        let node = params.require("params")?;
        let own = own_parameters(&MappingReader::new("`params`", node)?)?;
        let randomness = params.require("randomness")?;
        let randomness = params.choice("randomness", randomness, &RANDOMNESS)?;
        let effect = params.require("effect")?;
        let effect = params.choice("effect", effect, &EFFECTS)?;
        let pins_position = params.bool("pins_position", false)?;
        let cost = cost(params)?;
        let output = Some(schema(params.require("output")?)?);
        Ok(ExternalOperator {
            name: name.to_owned(),
            version,
            field,
            into,
            params: own,
            randomness,
            effect,
            pins_position,
            cost,
            output,
            entry: entry.copied(),
            operator: None,
        })
    }

    /// The field it writes.
    fn target(&self) -> &str {
        self.into.as_deref().unwrap_or(&self.field)
    }

    /// Whether this program's declaration of the operator equals the job's.
    fn is_declared(&self, declared: &OperatorDeclaration) -> bool {
        let OperatorDeclaration { version, randomness, effect, pins_position, .. } = *declared;
        (version, randomness, effect, pins_position)
            == (self.version, self.randomness, self.effect, self.pins_position)
    }

    /// Infers the output of `operator`, which must be one field.
    fn infer_with(&self, operator: &BoxedOperator, flow: &mut SchemaFlow) -> Result<(), String> {
        let (name, field) = (&self.name, &self.field);
        let input = flow.field(name, field)?.clone();
        let before = flow.schema().clone();
        operator.infer(flow).map_err(|why| {
            let why: String = why.chars().take(300).collect();
            let origin = flow.origin(field);
            format!("`{name}` on `{field}`, which is {input}{origin}: {}", one_line(&why))
        })?;
        let others = |schema: &ElementSchema| {
            let mut schema = schema.clone();
            schema.fields.remove(self.target());
            schema
        };
        match flow.schema().field(self.target()) {
            Some(made) if others(&before) == others(flow.schema()) => self.check_made(made),
            _ => Err(format!("`{name}` must write `{}` and no other field", self.target())),
        }
    }

    fn check_made(&self, made: &FieldSchema) -> Result<(), String> {
        if made.shape.len() > MAX_DIMS || made.dtype == FieldDType::Bytes && !made.shape.is_empty()
        {
            Err(format!("`{}` makes {made}, which no field can be", self.name))
        } else {
            Ok(())
        }
    }

    /// Returns this program's version of the operator, which must be the one of the job.
    fn resolve(&self, input: &FieldSchema) -> Result<(BoxedOperator, FieldSchema), String> {
        let (name, version) = (&self.name, self.version);
        let wrong = |why: String| format!("`{name}` {why}");
        let Some(entry) = self.entry else {
            return Err(wrong(format!(
                "version {version} is an operator of a user that this program was not built with; \
                 run workers that were built with it"
            )));
        };
        let known = entry.declaration.version;
        if version != known {
            return Err(wrong(format!(
                "is needed in version {version}, this program has {known}; run the workers that \
                 belong to the program that registered the job"
            )));
        }
        let operator = match &self.operator {
            Some(operator) => operator.clone(),
            None => self.read(&entry).map_err(|error| error.message)?,
        };
        let mut flow =
            SchemaFlow::new(ElementSchema { fields: [(self.field.clone(), input.clone())].into() });
        self.infer_with(&operator, &mut flow)?;
        let output = flow.schema().field(self.target()).cloned();
        let output = output.ok_or_else(|| wrong("makes nothing".into()))?;
        if self.output.as_ref() != Some(&output) || !self.is_declared(entry.declaration) {
            let registered = self.output.as_ref().map_or("nothing".into(), ToString::to_string);
            return Err(wrong(format!(
                "makes {output} in this program and {registered} in the one that registered the \
                 job, of one version; count it up, and build both anew"
            )));
        }
        Ok((operator, output))
    }

    /// Reads the parameters with this program's operator.
    fn read(&self, entry: &RegisteredOperator) -> Result<BoxedOperator, PipelineError> {
        let mut given = self.params.clone();
        given.insert("field".into(), Json::from(self.field.as_str()));
        if let Some(into) = &self.into {
            given.insert("into".into(), Json::from(into.as_str()));
        }
        let node = SyntaxNode::parse_json(&crate::pipeline::to_json(&given))?;
        let mut table = MappingReader::new(format!("`{}`", self.name), &node)?;
        let operator = entry.parse(&mut table)?;
        table.finish()?;
        Ok(operator)
    }
}

impl PartialEq for ExternalOperator {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.params_json() == other.params_json()
    }
}

impl OperatorFacts for ExternalOperator {
    /// Lacks the true name in a program that was not built with the operator or declares it
    /// differently.
    fn declaration(&self) -> &'static OperatorDeclaration {
        let known = self.entry.map(|entry| entry.declaration);
        if let Some(declared) = known.filter(|declared| self.is_declared(declared)) {
            return declared;
        }
        let effect = EFFECTS.iter().position(|(_, effect)| *effect == self.effect).unwrap_or(0);
        let random = usize::from(self.randomness == Randomness::Random);
        &DECLARED[effect * 4 + usize::from(self.pins_position) * 2 + random]
    }

    fn identity(&self) -> (&str, u32) {
        (&self.name, self.version)
    }

    fn params_json(&self) -> String {
        crate::pipeline::to_json(self)
    }

    fn clone_boxed(&self) -> Box<dyn Operator> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Operator) -> bool {
        other.downcast_ref::<ExternalOperator>().is_some_and(|other| self == other)
    }
}

impl Operator for ExternalOperator {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        if let Some(operator) = &self.operator {
            return self.infer_with(operator, flow);
        }
        flow.field(&self.name, &self.field)?;
        let Some(made) = self.output.clone() else {
            return Err(format!("it is not known what `{}` makes", self.name));
        };
        self.check_made(&made)?;
        let name = self.declaration().name;
        if self.target() != self.field {
            return flow.write_new(name, self.target(), made);
        }
        flow.write(name, &self.field, made);
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives { field: &self.field, into: self.target() }
    }

    fn cost(&self) -> DeclaredCost {
        self.cost
    }

    // Nothing is known of its bytes.
    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::Unknown
    }

    fn can_follow_batch(&self) -> bool {
        false
    }

    fn is_external(&self) -> bool {
        true
    }

    fn record_output(&mut self, flow: &SchemaFlow) {
        self.output = flow.schema().field(self.target()).cloned();
    }

    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let (operator, output) = self.resolve(input.field()?)?;
        let random = self.randomness == Randomness::Random;
        match operator.kernel(input)? {
            Kernel::Transform(kernel) => {
                Ok(Kernel::Transform(Box::new(CheckedTransform { kernel, output, random })))
            }
            Kernel::InPlace(kernel) if output == *input.field()? && self.into.is_none() => {
                Ok(Kernel::InPlace(Box::new(CheckedInPlace { kernel, random })))
            }
            _ => Err(format!("`{}` must transform its field, or change it in place", self.name)),
        }
    }
}

/// Values by their keys.
fn own_parameters(table: &MappingReader<'_>) -> Result<BTreeMap<String, Json>, PipelineError> {
    table.entries()?.into_iter().map(|(key, _, value)| Ok((key, json(value)?))).collect()
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn into(params: &mut MappingReader<'_>) -> Result<Option<String>, PipelineError> {
    let Some(node) = params.given("into") else { return Ok(None) };
    let name = params.text("into", node)?;
    crate::check_field_name(&name).map_err(|message| node.error(message))?;
    Ok(Some(name))
}

/// Most nanoseconds an element, and picoseconds a byte, of a declared cost.
const MAX_COST: u32 = u32::MAX;

fn is_unknown(cost: &DeclaredCost) -> bool {
    *cost == DeclaredCost::UNKNOWN
}

fn as_pair<S: Serializer>(cost: &DeclaredCost, serializer: S) -> Result<S::Ok, S::Error> {
    let most = u64::from(MAX_COST);
    [cost.element_ns.min(most), cost.byte_ps.min(most)].serialize(serializer)
}

/// Reads a cost as [`as_pair`] writes it; the default if there is none.
fn cost(params: &mut MappingReader<'_>) -> Result<DeclaredCost, PipelineError> {
    let Some(node) = params.given("cost") else { return Ok(DeclaredCost::UNKNOWN) };
    match params.wholes("cost", node, 0..=MAX_COST)?.as_slice() {
        &[element_ns, byte_ps] => Ok(DeclaredCost::new(element_ns.into(), byte_ps.into())),
        _ => Err(node.error("`cost` is [nanoseconds an element, picoseconds a byte]")),
    }
}

/// The kernel of a user's operator. Its output is checked against its schema.
struct CheckedTransform {
    kernel: Box<dyn TransformKernel>,
    output: FieldSchema,
    random: bool,
}

/// The same for an operator that changes its field in place.
struct CheckedInPlace {
    kernel: Box<dyn InPlaceKernel>,
    random: bool,
}

/// Turns an operator's message into a record's error: short, and on one line.
fn said(why: String) -> String {
    one_line(&why.chars().take(300).collect::<String>())
}

impl TransformKernel for CheckedTransform {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        // An operator declared deterministic always gets the same draws: otherwise its results
        // could depend on values that are not part of its fingerprint.
        let mut fixed = OperatorDraws::fixed();
        let draw = if self.random { draw } else { &mut fixed };
        // The buffer's old content may differ from run to run.
        let (made, room) = match output {
            KernelOutput::Buffer(buffer) => {
                buffer.clear();
                let made = self.kernel.run(input, KernelOutput::Buffer(&mut *buffer), tools, draw);
                (made, buffer.len())
            }
            KernelOutput::Row(row) => {
                row.fill(0);
                let made = self.kernel.run(input, KernelOutput::Row(&mut *row), tools, draw);
                (made, row.len())
            }
        };
        let made = made.map_err(said)?;
        if made.bytes > room {
            return Err(format!("the operator says that it made {} bytes, not {room}", made.bytes));
        }
        if is_of(&self.output, made) {
            Ok(made)
        } else {
            let (OutputSize { bytes, size: [height, width] }, schema) = (made, &self.output);
            Err(format!(
                "the operator made {bytes} bytes, an image of {height} x {width} if it is one, \
                     which is no {schema}"
            ))
        }
    }
}

impl InPlaceKernel for CheckedInPlace {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<(), String> {
        let mut fixed = OperatorDraws::fixed();
        let draw = if self.random { draw } else { &mut fixed };
        self.kernel.run(value, size, tools, draw).map_err(said)
    }
}

/// Whether the output can be a value of this schema.
fn is_of(schema: &FieldSchema, made: OutputSize) -> bool {
    if schema.dtype == FieldDType::Bytes {
        return true;
    }
    if let Some(bytes) = schema.element_bytes() {
        return made.bytes as u64 == bytes;
    }
    match (schema.item_bytes(), schema.shape.as_slice(), schema.dtype.size_bytes()) {
        (Some(item), _, _) => (made.bytes as u64).is_multiple_of(item.max(1)),
        // An image of varying size.
        (None, [height, width, Some(channels)], Some(value)) => {
            let [h, w] = made.size.map(|side| side as u64);
            let is = |dim: &Option<u32>, side| dim.is_none_or(|dim| u64::from(dim) == side);
            let bytes = h.checked_mul(w).and_then(|n| n.checked_mul(u64::from(*channels) * value));
            is(height, h) && is(width, w) && bytes == Some(made.bytes as u64)
        }
        _ => false,
    }
}

const DTYPES: [FieldDType; 11] = [
    FieldDType::Bytes,
    FieldDType::U8,
    FieldDType::F16,
    FieldDType::BF16,
    FieldDType::F32,
    FieldDType::F64,
    FieldDType::U16,
    FieldDType::I32,
    FieldDType::U32,
    FieldDType::I64,
    FieldDType::U64,
];

/// Converts a value of the pipeline file to JSON.
fn json(node: &SyntaxNode) -> Result<Json, PipelineError> {
    Ok(match &node.value {
        NodeValue::Null => Json::Null,
        NodeValue::Bool(value) => Json::Bool(*value),
        NodeValue::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => return Err(node.error(format!("{value} is beyond 64 bits"))),
        },
        // Adding zero turns -0.0 into 0.0, so that zero has one canonical form.
        NodeValue::Float(value) => match serde_json::Number::from_f64(*value + 0.0) {
            Some(value) => Json::Number(value),
            None => return Err(node.error(format!("{value} is no finite number"))),
        },
        NodeValue::Str(text) => Json::String(text.clone()),
        NodeValue::Seq(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        NodeValue::Map(entries) => {
            let mut sorted = BTreeMap::new();
            for (key, value) in entries {
                let NodeValue::Str(name) = &key.value else {
                    return Err(key.error(format!("keys are text, not {}", key.shown())));
                };
                sorted.insert(name.clone(), json(value)?);
            }
            Json::Object(sorted.into_iter().collect())
        }
    })
}

/// Reads a field's schema from the canonical form.
fn schema(node: &SyntaxNode) -> Result<FieldSchema, PipelineError> {
    let mut table = MappingReader::new("`output`", node)?;
    let names = DTYPES.map(|dtype| (dtype.name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &names)?;
    let shape = table.require("shape")?;
    let NodeValue::Seq(dims) = &shape.value else {
        return Err(shape.error(format!("`shape` must be a list, not {}", shown(&shape.shown()))));
    };
    // No image side is larger, and no list has more values.
    let most = MAX_SIDE.max(crate::MAX_VALUES);
    let dim = |dim: &SyntaxNode| match dim.value {
        NodeValue::Null => Ok(None),
        _ => table.whole("shape", dim, 0..=most).map(Some),
    };
    let shape = dims.iter().map(dim).collect::<Result<Vec<_>, _>>()?;
    let range = match table.given("range") {
        None => None,
        Some(node) => {
            let mut bounds = MappingReader::new("`range`", node)?;
            let mut bound = |key| {
                let node = bounds.require(key)?;
                bounds.number(key, node, f64::MIN..=f64::MAX)
            };
            Some(ValueRange { min: bound("min")?, max: bound("max")? })
        }
    };
    table.finish()?;
    Ok(FieldSchema { dtype, shape, range })
}

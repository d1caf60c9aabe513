//! Operators of users, whatever they do: a field, parameters only they understand, and what they declared.

use super::{MAX_SIDE, optional};
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, Randomness, Signature, ValueRange,
    flow::Flow,
    node::{Node, Value, shown},
    table::Table,
};
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Keys that every operator has and that are none of its own.
const NOT_PARAMETERS: [&str; 4] = ["field", "into", "keep_position", "assume_commutes"];
/// Most dimensions of what it makes, as of a feature.
const MAX_DIMS: usize = 8;
const DTYPES: [DType; 11] = [
    DType::Bytes,
    DType::U8,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::U16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
];
const EFFECTS: [(&str, Effect); 7] = [
    ("opaque", Effect::Opaque),
    ("value", Effect::Value),
    ("colour", Effect::Colour),
    ("mirror", Effect::Mirror),
    ("resample", Effect::Resample),
    ("window", Effect::Window),
    ("warp", Effect::Warp),
];
const RANDOMNESS: [(&str, Randomness); 2] =
    [("deterministic", Randomness::Deterministic), ("random", Randomness::Random)];

/// What an operator says of itself in a program that was not built with it, by place: effect, whether it
/// pins its position, randomness.
static DECLARED: [Declaration; 28] = {
    let mut all = [Declaration::of_user("custom", 1); 28];
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Custom {
    #[serde(skip)]
    pub name: String,
    #[serde(skip)]
    pub version: u32,
    pub field: String,
    /// The field it writes; none if it is the one it reads.
    pub into: Option<String>,
    /// Its own parameters, as JSON.
    pub params: BTreeMap<String, Json>,
    pub randomness: Randomness,
    pub effect: Effect,
    pub pins_position: bool,
    /// What it makes, once that is known.
    pub output: Option<FieldSchema>,
    /// None in a program that was not built with it.
    #[serde(skip)]
    pub(crate) signature: Option<Signature>,
}

impl Custom {
    /// Reads the parameters that an author gave.
    pub(crate) fn parse(
        signature: Signature,
        params: &mut Table<'_>,
    ) -> Result<Self, PipelineError> {
        let Declaration { name, version, randomness, effect, pins_position, .. } =
            *signature.declaration;
        let field = params.field()?;
        let into = into(params)?;
        let mut own = BTreeMap::new();
        for (key, value) in params.others(&NOT_PARAMETERS)? {
            own.insert(key, json(value)?);
        }
        Ok(Custom {
            name: name.to_owned(),
            version,
            field,
            into,
            params: own,
            randomness,
            effect,
            pins_position,
            output: None,
            signature: Some(signature),
        })
    }

    /// Reads the canonical form.
    pub(crate) fn parse_canonical(
        name: &str,
        version: u32,
        params: &mut Table<'_>,
    ) -> Result<Self, PipelineError> {
        crate::signature::check_name(name).map_err(|message| params.error(message))?;
        let field = params.field()?;
        let into = into(params)?;
        let node = params.require("params")?;
        let own = Table::new("`params`", node)?.entries()?;
        let own = own.into_iter().map(|(key, _, value)| Ok((key, json(value)?)));
        let own = own.collect::<Result<BTreeMap<_, _>, PipelineError>>()?;
        let randomness = params.require("randomness")?;
        let randomness = params.choice("randomness", randomness, &RANDOMNESS)?;
        let effect = params.require("effect")?;
        let effect = params.choice("effect", effect, &EFFECTS)?;
        let pins_position = params.bool("pins_position", false)?;
        let output = Some(schema(params.require("output")?)?);
        Ok(Custom {
            name: name.to_owned(),
            version,
            field,
            into,
            params: own,
            randomness,
            effect,
            pins_position,
            output,
            signature: None,
        })
    }

    /// What it declares; without its true name in a program that was not built with it.
    pub fn declaration(&self) -> &'static Declaration {
        if let Some(signature) = self.signature {
            return signature.declaration;
        }
        let effect = EFFECTS.iter().position(|(_, effect)| *effect == self.effect).unwrap_or(0);
        let random = usize::from(self.randomness == Randomness::Random);
        &DECLARED[effect * 4 + usize::from(self.pins_position) * 2 + random]
    }

    /// The field it writes.
    pub fn target(&self) -> &str {
        self.into.as_deref().unwrap_or(&self.field)
    }

    /// Its own parameters as one JSON object.
    pub fn params_json(&self) -> Json {
        Json::Object(self.params.clone().into_iter().collect())
    }

    pub(crate) fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field(&self.name, &self.field)?;
        let made = match (self.signature, &self.output) {
            (Some(signature), _) => {
                (signature.infer)(&self.params_json(), input).map_err(|why| {
                    let why: String = why.chars().take(300).collect();
                    let origin = flow.origin(&self.field);
                    let (name, field) = (&self.name, &self.field);
                    format!("`{name}` on `{field}`, which is {input}{origin}: {}", one_line(&why))
                })?
            }
            (None, Some(output)) => output.clone(),
            (None, None) => return Err(format!("it is not known what `{}` makes", self.name)),
        };
        if made.shape.len() > MAX_DIMS || (made.dtype == DType::Bytes && !made.shape.is_empty()) {
            return Err(format!("`{}` makes {made}, which no field can be", self.name));
        }
        let name = self.declaration().name;
        if self.target() != self.field {
            return flow.write_new(name, self.target(), made);
        }
        flow.write(name, &self.field, made);
        Ok(())
    }

    /// Writes down what it makes, after [`infer`](Self::infer).
    pub(crate) fn settle(&mut self, flow: &Flow) {
        self.output = flow.schema().field(self.target()).cloned();
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn into(params: &mut Table<'_>) -> Result<Option<String>, PipelineError> {
    let Some(node) = optional(params, "into") else { return Ok(None) };
    let name = params.text("into", node)?;
    crate::source::check_name(&name).map_err(|message| node.error(message))?;
    Ok(Some(name))
}

/// A value of the pipeline file as JSON.
fn json(node: &Node) -> Result<Json, PipelineError> {
    Ok(match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => return Err(node.error(format!("{value} is beyond 64 bits"))),
        },
        // Adding zero turns -0.0, which would have a canonical form of its own, into 0.0.
        Value::Float(value) => match serde_json::Number::from_f64(*value + 0.0) {
            Some(value) => Json::Number(value),
            None => return Err(node.error(format!("{value} is no finite number"))),
        },
        Value::Str(text) => Json::String(text.clone()),
        Value::Seq(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        Value::Map(entries) => {
            let mut sorted = BTreeMap::new();
            for (key, value) in entries {
                let Value::Str(name) = &key.value else {
                    return Err(key.error(format!("keys are text, not {}", key.shown())));
                };
                sorted.insert(name.clone(), json(value)?);
            }
            Json::Object(sorted.into_iter().collect())
        }
    })
}

/// A field's schema, as the canonical form has it.
fn schema(node: &Node) -> Result<FieldSchema, PipelineError> {
    let mut table = Table::new("`output`", node)?;
    let names = DTYPES.map(|dtype| (dtype.name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &names)?;
    let shape = table.require("shape")?;
    let Value::Seq(dims) = &shape.value else {
        return Err(shape.error(format!("`shape` must be a list, not {}", shown(&shape.shown()))));
    };
    // No image is larger, and no list of numbers has more values.
    let most = MAX_SIDE.max(crate::MAX_VALUES);
    let dim = |dim: &Node| match dim.value {
        Value::Null => Ok(None),
        _ => table.whole("shape", dim, 0..=most).map(Some),
    };
    let shape = dims.iter().map(dim).collect::<Result<Vec<_>, _>>()?;
    let range = match optional(&mut table, "range") {
        None => None,
        Some(node) => {
            let mut bounds = Table::new("`range`", node)?;
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

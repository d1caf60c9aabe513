//! Tracks the schema through the operators while a pipeline is checked.

use crate::{
    Cardinality, ElementSchema, FieldDType, FieldSchema, OperatorDeclaration, OperatorScope,
    Randomness, table::one_of,
};
use std::collections::{BTreeMap, BTreeSet};

/// The schema so far, and facts about earlier operators that error messages need.
#[derive(Clone, Debug, Default)]
pub struct SchemaFlow {
    schema: ElementSchema,
    writers: BTreeMap<String, &'static str>,
    /// The first operator after which elements no longer correspond one to one to records.
    recounted: Option<&'static str>,
    /// The first operator on the sequence of records.
    resequenced: Option<&'static str>,
    /// The first random operator, and whether it works on the sequence of records.
    random: Option<(&'static str, bool)>,
    /// Whether there was a cache point before.
    cached: bool,
    /// Fields that were decoded as class numbers.
    masks: BTreeSet<String>,
}

impl SchemaFlow {
    /// Begins with the elements of the source.
    pub fn new(schema: ElementSchema) -> Self {
        SchemaFlow { schema, ..SchemaFlow::default() }
    }

    /// The element after the operators so far.
    pub fn schema(&self) -> &ElementSchema {
        &self.schema
    }

    /// Returns a field that an operator reads.
    pub fn field(&self, op: &str, name: &str) -> Result<&FieldSchema, String> {
        self.schema.field(name).ok_or_else(|| {
            let known: Vec<String> = self.schema.fields.keys().map(|f| format!("`{f}`")).collect();
            format!(
                "`{op}` works on field {}, but the element has {}; name one with `field:`",
                crate::node::shown(name),
                known.join(", ")
            )
        })
    }

    /// The error of an operator that needs `wanted` in a field.
    pub fn needs(&self, op: &str, wanted: &str, name: &str) -> String {
        let found = self.schema.field(name).map(FieldSchema::to_string).unwrap_or_default();
        format!("`{op}` needs {wanted}, but `{name}` is {found}{}", self.origin(name))
    }

    /// Returns the field as an image: `[h, w, c]` of one of `dtypes`, with one of `channels`.
    pub fn image_of(
        &self,
        op: &str,
        name: &str,
        dtypes: &[FieldDType],
        channels: &[u32],
    ) -> Result<&FieldSchema, String> {
        let field = self.field(op, name)?;
        let of_these = |c: Option<u32>| c.is_some_and(|c| channels.contains(&c));
        if dtypes.contains(&field.dtype) && field.shape.len() == 3 && of_these(field.shape[2]) {
            return Ok(field);
        }
        let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        let shapes: Vec<String> = channels.iter().map(|c| format!("[h, w, {c}]")).collect();
        let advice = match field.dtype {
            FieldDType::Bytes => "; put `decode` before it",
            _ => "",
        };
        let (names, shapes) = (one_of(&names), one_of(&shapes));
        Err(self.needs(op, &format!("an image ({names} {shapes})"), name) + advice)
    }

    /// Returns the field as a mask: numbers `[h, w, c]`.
    pub fn mask_of(&self, op: &str, name: &str) -> Result<&FieldSchema, String> {
        let field = self.field(op, name)?;
        if field.dtype != FieldDType::Bytes && matches!(field.shape[..], [_, _, Some(1..)]) {
            return Ok(field);
        }
        let advice = match field.dtype {
            FieldDType::Bytes => "; put `decode: { mode: indices }` before it",
            _ => "",
        };
        Err(self.needs(op, "a mask (numbers [h, w, c])", name) + advice)
    }

    /// Whether the field was decoded as class numbers.
    pub fn is_mask(&self, name: &str) -> bool {
        self.masks.contains(name)
    }

    /// Records whether a field holds class numbers.
    pub fn set_mask(&mut self, name: &str, is_mask: bool) {
        if is_mask {
            self.masks.insert(name.to_owned())
        } else {
            self.masks.remove(name)
        };
    }

    /// Returns the field as a colour image: u8 from 0 to 255, or f32 from 0 to 1.
    pub fn colours(&self, op: &str, name: &str, channels: &[u32]) -> Result<&FieldSchema, String> {
        let field = self.image_of(op, name, &[FieldDType::U8, FieldDType::F32], channels)?;
        let wrong = field.range.filter(|range| range.min < -1e-6 || range.max > 1.0 + 1e-6);
        match wrong.filter(|_| field.dtype == FieldDType::F32) {
            None => Ok(field),
            Some(range) => Err(format!(
                "`{op}` takes u8, or f32 from 0 to 1, but `{name}` is f32 from {:.3} to {:.3}{}; \
                 put it before, or a `scale` to 0 to 1 between",
                range.min,
                range.max,
                self.origin(name)
            )),
        }
    }

    /// Refuses an operator that counts records if elements no longer correspond to records.
    pub fn counts_records(&self, op: &str) -> Result<(), String> {
        match self.recounted {
            None => Ok(()),
            Some(other) => Err(format!(
                "`{op}` counts records, but comes after `{other}`, which makes more or fewer elements \
                 of them: put it before"
            )),
        }
    }

    /// Refuses an operator on files after another operator on the sequence of records.
    pub fn works_on_files(&self, op: &str) -> Result<(), String> {
        match self.resequenced {
            None => Ok(()),
            Some(other) => {
                Err(format!("`{op}` works on files, but comes after `{other}`: put it before"))
            }
        }
    }

    /// The first random operator, and whether it works on the sequence of records.
    pub fn random(&self) -> Option<(&'static str, bool)> {
        self.random
    }

    /// Records that there is a cache point here.
    pub fn pass_cache_point(&mut self) {
        self.cached = true;
    }

    /// Refuses an operator on the sequence of records after a cache point.
    pub fn comes_before_caches(&self, op: &str) -> Result<(), String> {
        if self.cached {
            Err(format!(
                "`{op}` comes after `autocache`, but decides which records are read, before anything is \
                 cached: put it before"
            ))
        } else {
            Ok(())
        }
    }

    /// Records how an operator affects the number and order of elements, and whether it draws.
    pub fn pass(&mut self, declared: &OperatorDeclaration) {
        if declared.randomness == Randomness::Random {
            self.random.get_or_insert((declared.name, declared.scope == OperatorScope::Global));
        }
        if declared.scope == OperatorScope::Global {
            self.resequenced.get_or_insert(declared.name);
        } else if declared.cardinality != Cardinality::OneToOne {
            self.recounted.get_or_insert(declared.name);
        }
    }

    /// The origin of a field for messages: " after `decode`", or " in the source".
    pub fn origin(&self, name: &str) -> String {
        match self.writers.get(name) {
            Some(op) => format!(" after `{op}`"),
            None => " in the source".into(),
        }
    }

    /// Replaces the schema of a field by the output of `op`.
    pub fn write(&mut self, op: &'static str, name: &str, field: FieldSchema) {
        self.schema.fields.insert(name.to_owned(), field);
        self.writers.insert(name.to_owned(), op);
    }

    /// Adds the new field `into` that `op` makes.
    pub fn write_new(
        &mut self,
        op: &'static str,
        into: &str,
        field: FieldSchema,
    ) -> Result<(), String> {
        if self.schema.field(into).is_some() {
            return Err(format!(
                "`{op}` makes the new field `{into}`, but the element has one of that name{}; choose \
                 another for `into`, or `drop` that one before",
                self.origin(into)
            ));
        }
        self.write(op, into, field);
        Ok(())
    }

    /// Removes a field.
    pub fn remove(&mut self, name: &str) {
        self.schema.fields.remove(name);
        self.masks.remove(name);
        self.writers.remove(name);
    }
}

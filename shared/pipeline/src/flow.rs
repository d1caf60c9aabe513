//! The schema as it flows through the operators while a pipeline is checked.

use crate::{DType, FieldSchema, Schema};
use std::collections::BTreeMap;

/// The schema so far, and who wrote each field: what a refusal needs to say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    schema: Schema,
    writers: BTreeMap<String, &'static str>,
}

impl Flow {
    pub(crate) fn new(schema: Schema) -> Self {
        Flow { schema, writers: BTreeMap::new() }
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The field an operator reads.
    pub(crate) fn field(&self, op: &str, name: &str) -> Result<&FieldSchema, String> {
        self.schema.field(name).ok_or_else(|| {
            let known: Vec<String> = self.schema.fields.keys().map(|f| format!("`{f}`")).collect();
            format!(
                "`{op}` works on field {}, but the element has {}; name one with `field:`",
                crate::node::shown(name),
                known.join(", ")
            )
        })
    }

    /// The field as an image: `[h, w, 3]` of one of `dtypes`.
    pub(crate) fn image(
        &self,
        op: &str,
        name: &str,
        dtypes: &[DType],
    ) -> Result<&FieldSchema, String> {
        let field = self.field(op, name)?;
        if dtypes.contains(&field.dtype) && field.shape.len() == 3 && field.shape[2] == Some(3) {
            return Ok(field);
        }
        let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        let advice = match field.dtype {
            DType::Bytes => "; put `decode` before it",
            _ => "",
        };
        Err(format!(
            "`{op}` needs an image ({} [h, w, 3]), but `{name}` is {field}{}{advice}",
            crate::table::one_of(&names),
            self.origin(name)
        ))
    }

    /// " after `decode`", or " in the source".
    pub(crate) fn origin(&self, name: &str) -> String {
        match self.writers.get(name) {
            Some(op) => format!(" after `{op}`"),
            None => " in the source".into(),
        }
    }

    /// Replaces a field by what `op` makes of it.
    pub(crate) fn write(&mut self, op: &'static str, name: &str, field: FieldSchema) {
        self.schema.fields.insert(name.to_owned(), field);
        self.writers.insert(name.to_owned(), op);
    }

    /// Takes a field away.
    pub(crate) fn remove(&mut self, name: &str) {
        self.schema.fields.remove(name);
        self.writers.remove(name);
    }
}

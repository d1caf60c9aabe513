//! `flat_map`: makes one element of each item of a field.

use crate::prelude::*;

/// `[n, ..shape]` in `field` -> n elements of `[..shape]`, in order; the other fields are repeated. Without
/// items there is no element. As `tf.data.Dataset.flat_map(Dataset.from_tensor_slices)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlatMap {
    pub field: String,
}

impl OperatorDefinition for FlatMap {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("flat_map", 1).costs(300, 100)
    };

    const PARAMETERS: &'static [Parameter] =
        &[required("field", ParameterKind::Field, "The list.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(FlatMap { field: required_field(params)? })
    }
}

impl Operator for FlatMap {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("flat_map", &self.field)?;
        let items = input.shape.split_first().filter(|_| input.item_bytes().is_some());
        let Some((_, item)) = items.filter(|_| input.dtype != FieldDType::Bytes) else {
            return Err(format!(
                "`flat_map` needs a list of items of one shape, but `{}` is {input}{}",
                self.field,
                flow.origin(&self.field)
            ));
        };
        let output = FieldSchema { shape: item.to_vec(), ..input.clone() };
        flow.write("flat_map", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(Kernel::FlatMap { item_bytes: item_bytes_of(given) })
    }
}

//! Operators on whole elements, and those for experiments.

use crate::prelude::*;

/// Any field -> the same, and a copy in the new field `into`, a name that the element must not have yet.
/// Later operators can treat the two differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyField {
    pub field: String,
    pub into: String,
}

impl OperatorDefinition for CopyField {
    const DECLARATION: OperatorDeclaration = element_wise("copy", 1).costs(200, 100);

    const PARAMETERS: &'static [Parameter] =
        &[FIELD, required("into", ParameterKind::Field, "The new field.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(CopyField { into: into(params, "copy")?, field: params.field()? })
    }
}

impl Operator for CopyField {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let copy = flow.field("copy", &self.field)?.clone();
        flow.write_new("copy", &self.into, copy)?;
        flow.set_mask(&self.into, flow.is_mask(&self.field));
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives { field: &self.field, into: &self.into }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(transform(|input, output, _, _| {
            output.take(input.bytes.len())?.copy_from_slice(input.bytes);
            Ok(OutputSize { bytes: input.bytes.len(), size: input.size })
        }))
    }
}

/// Any element -> the same without `fields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropFields {
    pub fields: Vec<String>,
}

impl OperatorDefinition for DropFields {
    const DECLARATION: OperatorDeclaration = element_wise("drop", 1).costs(50, 0);

    const PARAMETERS: &'static [Parameter] = &[required(
        "fields",
        ParameterKind::List(&ParameterKind::Field),
        "The fields that are left out.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let node: &SyntaxNode = params.require("fields")?;
        Ok(DropFields { fields: named_fields(params, "drop", node)? })
    }
}

/// The names of at least one field, each once.
fn named_fields(
    params: &MappingReader<'_>,
    op: &str,
    node: &SyntaxNode,
) -> Result<Vec<String>, PipelineError> {
    let fields: Vec<String> = match &node.value {
        NodeValue::Str(_) => vec![params.text("fields", node)?],
        NodeValue::Seq(items) if !items.is_empty() => {
            items.iter().map(|item| params.text("fields", item)).collect::<Result<_, _>>()?
        }
        _ => return Err(node.error(format!("`{op}` `fields` must be a list of field names"))),
    };
    match fields.iter().enumerate().find(|(i, field)| fields[..*i].contains(field)) {
        Some((_, twice)) => {
            Err(node.error(format!("`{op}` `fields` names {} twice", shown(twice))))
        }
        None => Ok(fields),
    }
}

impl Operator for DropFields {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        for field in &self.fields {
            flow.field("drop", field)?;
            flow.remove(field);
        }
        if flow.schema().fields.is_empty() {
            Err("`drop` leaves the element without fields".into())
        } else {
            Ok(())
        }
    }

    fn forget(&mut self, field: &str) {
        self.fields.retain(|dropped| dropped != field);
    }

    fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    // The output schema lacks the fields, which is enough to leave them out.
    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Nothing)
    }
}

/// Most copies of an element.
const MAX_COPIES: u32 = 1024;

/// One element -> `copies` of it, one after the other: the views of contrastive learning, such as
/// SimCLR's two. Operators before it run once per element; random operators after it draw once per copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub copies: u32,
}

impl OperatorDefinition for Duplicate {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("duplicate", 1).costs(100, 100)
    };

    const PARAMETERS: &'static [Parameter] =
        &[or("copies", from_to(1, MAX_COPIES), "2", "Elements made of each.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let copies = params.read_whole("copies")?;
        Ok(Duplicate { copies })
    }
}

impl Operator for Duplicate {
    fn does_nothing(&self) -> Option<&'static str> {
        (self.copies == 1).then_some("one copy is the element itself")
    }

    fn copies(&self) -> u32 {
        self.copies
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Duplicate { copies: self.copies })
    }
}

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
            return Err(flow.needs("flat_map", "a list of items of one shape", &self.field));
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

/// Lists `[n, ..shape]` -> n elements of `[..shape]`, item i of each list side by side: of a record with a batch of
/// rows its rows. The other fields are repeated. As `tf.data.Dataset.unbatch`, which takes all fields. Splits are runs of
/// records: a split of lists has more rows, n times as many where `n` is fixed, which its size allows for. Rows of
/// one record are `__copy__` 0 to n - 1 of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnbatchLists {
    pub fields: Option<Vec<String>>,
    /// The lists: those of `fields`, or all fields of the element.
    #[serde(skip)]
    lists: Vec<String>,
    /// Items of every list, if the schema has them.
    #[serde(skip)]
    items: Option<u32>,
}

impl OperatorDefinition for UnbatchLists {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("unbatch", 1).costs(300, 100)
    };

    const PARAMETERS: &'static [Parameter] = &[absent(
        "fields",
        ParameterKind::List(&ParameterKind::Field),
        "The lists, of equally many items; all fields if left out.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let fields = params.given("fields").map(|node| named_fields(params, "unbatch", node));
        Ok(UnbatchLists { fields: fields.transpose()?, lists: Vec::new(), items: None })
    }
}

impl Operator for UnbatchLists {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let mut fixed: Option<(&String, u32)> = None;
        for name in &self.lists {
            let input = flow.field("unbatch", name)?;
            let items = input.shape.split_first().filter(|_| input.item_bytes().is_some());
            let Some((items, item)) = items.filter(|_| input.dtype != FieldDType::Bytes) else {
                let advice = match self.fields {
                    None => "; name the lists with `fields`, and the other fields are repeated",
                    Some(_) => "",
                };
                let needs = flow.needs("unbatch", "lists of items of one shape", name);
                return Err(needs + advice);
            };
            let output = FieldSchema { shape: item.to_vec(), ..input.clone() };
            if let Some(items) = *items {
                let (first, expected) = *fixed.get_or_insert((name, items));
                if items != expected {
                    return Err(format!(
                        "`unbatch` takes lists of equally many items, but `{first}` has {expected} and \
                         `{name}` {items}"
                    ));
                }
            }
            flow.write("unbatch", name, output);
        }
        Ok(())
    }

    fn record_input(&mut self, flow: &SchemaFlow) {
        let fields = &flow.schema().fields;
        self.lists = self.fields.clone().unwrap_or_else(|| fields.keys().cloned().collect());
        let dimension = |name: &String| *fields.get(name)?.shape.first()?;
        self.items = self.lists.iter().find_map(dimension);
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Items(&self.lists)
    }

    fn copies(&self) -> u32 {
        self.items.unwrap_or(1).max(1)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Unbatch)
    }
}

/// Any element -> the same. The service may store the elements at this point and read them in later epochs
/// instead of computing them, if its measurements show a gain (Cachew, section 4.4). Results do not change.
/// After `batch` it caches the batches as they are delivered. Random operators may precede it only with
/// `reuse_random`; every epoch then repeats the draws of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Autocache {
    pub reuse_random: bool,
}

impl OperatorDefinition for Autocache {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { pins_position: true, ..element_wise("autocache", 1).costs(0, 0) };

    const PARAMETERS: &'static [Parameter] = &[switch(
        "reuse_random",
        "What comes before may draw at random: every epoch then has the draws of the first, at the price of less variety.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Autocache { reuse_random: params.read_flag("reuse_random")? })
    }
}

impl Operator for Autocache {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let refused = flow.random().filter(|_| !self.reuse_random);
        if let Some((op, of_dataset)) = refused {
            // Dataset operators may not follow a cache point, so moving it before one is no option.
            let advice = if of_dataset {
                format!("leave `{op}` out")
            } else {
                format!("move it before `{op}`")
            };
            return Err(format!(
                "`autocache` comes after `{op}`, which draws at random: every epoch would repeat the \
                 draws that were cached; {advice}, or say `reuse_random: true` if that is welcome"
            ));
        }
        flow.pass_cache_point();
        Ok(())
    }

    fn cache_point(&self) -> Option<bool> {
        Some(self.reuse_random)
    }
}

/// Longest sleep, in milliseconds: a minute per element.
const MAX_SLEEP_MS: f64 = 60_000.0;

/// The unit that one sleep delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepPer {
    Element,
}

/// Any element -> the same, `ms` milliseconds later. Uses no CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sleep {
    pub ms: f64,
    pub per: SleepPer,
}

impl OperatorDefinition for Sleep {
    const DECLARATION: OperatorDeclaration = element_wise("sleep", 1).costs(0, 0);

    const PARAMETERS: &'static [Parameter] = &[
        required(
            "ms",
            ParameterKind::Number { min: 0.0, max: MAX_SLEEP_MS },
            "0 to 60,000; fractions count.",
        ),
        or("per", ParameterKind::Choice(&["element"]), "element", "What one sleep is for."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let ms = params.read_number("ms")?;
        let per = params.read_choice("per", &[SleepPer::Element])?;
        Ok(Sleep { ms, per })
    }
}

impl Operator for Sleep {
    fn cost(&self) -> DeclaredCost {
        DeclaredCost::new((self.ms * 1e6) as u64, 0)
    }

    fn waits(&self) -> bool {
        true
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Wait(std::time::Duration::from_secs_f64(self.ms / 1e3)))
    }
}

/// Largest factor.
const MAX_FACTOR: u32 = 1_000_000;

/// Any numeric `[..shape]` -> `[factor, ..shape]` of the same dtype: the value repeated `factor` times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inflate {
    pub field: String,
    pub factor: u32,
}

impl OperatorDefinition for Inflate {
    const DECLARATION: OperatorDeclaration = element_wise("inflate", 1).costs(500, 100);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required("factor", from_to(1, MAX_FACTOR), "How many times the value is repeated."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let factor = params.read_whole("factor")?;
        Ok(Inflate { field: params.field()?, factor })
    }
}

impl Operator for Inflate {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = &self.field;
        let input = flow.field("inflate", field)?;
        if input.dtype == FieldDType::Bytes || input.known_shape().is_none() {
            return Err(flow.needs("inflate", "numbers of one shape", field));
        }
        let shape = [Some(self.factor)].into_iter().chain(input.shape.iter().copied()).collect();
        let output = FieldSchema { shape, ..input.clone() };
        // `batch` would also refuse it, but only after further operators made it larger still.
        if output.shape.len() > 8 || output.element_bytes().is_none_or(|b| b > MAX_BATCH_BYTES) {
            return Err(format!("`inflate` makes `{field}` {output}, which no batch can hold"));
        }
        flow.write("inflate", field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let factor = self.factor as usize;
        Ok(transform(move |input, output, _, _| {
            let bytes = input.bytes.len() * factor;
            for copy in output.take(bytes)?.chunks_exact_mut(input.bytes.len().max(1)) {
                copy.copy_from_slice(input.bytes);
            }
            Ok(OutputSize { bytes, size: input.size })
        }))
    }
}

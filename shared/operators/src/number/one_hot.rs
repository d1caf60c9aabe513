//! `one_hot`: converts a class number to a one-hot vector.

use crate::prelude::*;

/// Most classes.
const MAX_CLASSES: u32 = 1 << 24;

/// An integer scalar -> f32 or u8 `[classes]`. As `tf.one_hot`, except that a number outside 0 to
/// `classes` - 1 is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneHot {
    pub field: String,
    pub classes: u32,
    pub dtype: CastDType,
}

impl OperatorDefinition for OneHot {
    const DECLARATION: OperatorDeclaration = element_wise("one_hot", 1).costs(300, 100);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The field of class numbers."),
        required(
            "classes",
            ParameterKind::Whole { min: 1, max: MAX_CLASSES as u64 },
            "Number of classes.",
        ),
        or("dtype", ParameterKind::Choice(&["f32", "u8"]), "f32", "f32 or u8."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let classes = whole::<Self>(params, "classes")?;
        let dtype = choice::<Self, _>(params, "dtype", &[CastDType::F32, CastDType::U8])?;
        Ok(OneHot { field, classes, dtype })
    }
}

impl Operator for OneHot {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("one_hot", &self.field)?;
        if !input.shape.is_empty() || !input.dtype.is_integer() {
            let (field, origin) = (&self.field, flow.origin(&self.field));
            return Err(format!(
                "`one_hot` needs one whole number, but `{field}` is {input}{origin}"
            ));
        }
        let range = Some(ValueRange { min: 0.0, max: 1.0 });
        let output = FieldSchema::fixed(self.dtype.dtype(), [self.classes]);
        flow.write("one_hot", &self.field, FieldSchema { range, ..output });
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let (given, classes) = (input.field()?.dtype, self.classes as usize);
        let one = value_bytes(self.dtype.dtype(), 1.0);
        Ok(transform(move |input, output, _, _| {
            let class = crate::kernels::integer(given, input.bytes).ok_or("it has no value")?;
            let place = usize::try_from(class).ok().filter(|place| *place < classes);
            let place =
                place.ok_or_else(|| format!("{class} is not one of {classes} classes, 0 on"))?;
            let bytes = classes * one.len();
            let out = output.take(bytes)?;
            out.fill(0);
            out[place * one.len()..][..one.len()].copy_from_slice(&one);
            Ok(OutputSize { bytes, size: [0, 0] })
        }))
    }
}

//! `add`, `subtract`, `multiply` and `divide`: a field, item by item, with a number or with another field.

use crate::prelude::*;
use FieldDType::{BF16, F16, F32, F64, I32, I64, U8, U16, U64};

/// One of the four operations, as an operator.
pub trait ArithmeticOperation: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static {
    const DECLARATION: OperatorDeclaration;
    /// Between two integers of a dtype; none if the dtype cannot hold the result.
    const WHOLE: Option<fn(i128, i128) -> Option<i128>>;
    const SINGLE: fn(f32, f32) -> f32;
    const DOUBLE: fn(f64, f64) -> f64;
    /// How messages write it.
    const SIGN: char;
}

/// Numbers of any shape -> numbers of numpy's dtype for the operation: the field, item by item, with `value`
/// or with field `by` of the same shape. Either of two fields may be one number. As numpy, except that a
/// result that an integer dtype cannot hold is an error of its record, as is a division of integers by zero.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arithmetic<T> {
    pub field: String,
    #[serde(flatten)]
    pub operand: ArithmeticOperand,
    #[serde(skip)]
    operation: std::marker::PhantomData<T>,
}

/// The second operand.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArithmeticOperand {
    Value(AuthoredNumber),
    By(String),
}

macro_rules! operation {
    ($name:ident, $kind:ident, $text:literal, $sign:literal, $whole:expr, $op:tt) => {
        /// As [`Arithmetic`].
        pub type $name = Arithmetic<$kind>;

        #[derive(Clone, Debug, PartialEq)]
        pub struct $kind;

        impl ArithmeticOperation for $kind {
            const DECLARATION: OperatorDeclaration = element_wise($text, 1).costs(300, 600);
            const WHOLE: Option<fn(i128, i128) -> Option<i128>> = $whole;
            const SINGLE: fn(f32, f32) -> f32 = |a, b| a $op b;
            const DOUBLE: fn(f64, f64) -> f64 = |a, b| a $op b;
            const SIGN: char = $sign;
        }
    };
}

operation!(Add, Addition, "add", '+', Some(i128::checked_add), +);
operation!(Subtract, Subtraction, "subtract", '-', Some(i128::checked_sub), -);
operation!(Multiply, Multiplication, "multiply", '*', Some(i128::checked_mul), *);
operation!(Divide, Division, "divide", '/', None, /);

/// Dtypes that numpy has.
const NUMBERS: &[FieldDType] = &[U8, U16, U64, I32, I64, F16, F32, F64];

/// The dtype in which numpy computes with both.
fn promoted(one: FieldDType, other: FieldDType) -> FieldDType {
    let is_signed = |dtype| matches!(dtype, I32 | I64);
    match (one.is_integer(), other.is_integer()) {
        _ if one == other => one,
        (false, true) => promoted(other, one),
        (false, false) if one == F64 || other == F64 => F64,
        (false, false) => F32,
        (true, false) => match (one, other) {
            (U8, _) | (U16, F32) => other,
            (U16, F16) => F32,
            _ => F64,
        },
        (true, true) if is_signed(one) == is_signed(other) => {
            if one.size_bytes() > other.size_bytes() { one } else { other }
        }
        (true, true) => {
            let (signed, unsigned) = if is_signed(one) { (one, other) } else { (other, one) };
            if unsigned == U64 { F64 } else { signed }
        }
    }
}

impl<T: ArithmeticOperation> OperatorDefinition for Arithmetic<T> {
    const DECLARATION: OperatorDeclaration = T::DECLARATION;

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The first operand, which the result replaces."),
        absent("value", ANY_NUMBER, "The second operand: a number. `2.0` is 2."),
        absent("by", ParameterKind::Field, "Or a field."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (field, op) = (required_field(params)?, T::DECLARATION.name);
        let operand = match (params.given("value"), params.given("by")) {
            (Some(node), None) => {
                let value = AuthoredNumber::parse(params, "value", node)?;
                if op == "divide" && value == AuthoredNumber::ZERO {
                    return Err(node.error("`divide` `value` must not be 0"));
                }
                ArithmeticOperand::Value(value)
            }
            (None, Some(node)) => ArithmeticOperand::By(params.text("by", node)?),
            _ => {
                let wanted = format!("`{op}` needs `value`, a number, or `by`, a field");
                return Err(params.error(wanted));
            }
        };
        Ok(Arithmetic { field, operand, operation: std::marker::PhantomData })
    }
}

impl<T: ArithmeticOperation> Arithmetic<T> {
    /// The dtype in which it computes, which is that of the result.
    fn dtype(&self, field: &FieldSchema, by: Option<&FieldSchema>) -> FieldDType {
        let dtype = match (&self.operand, by) {
            (_, Some(by)) => promoted(field.dtype, by.dtype),
            (ArithmeticOperand::Value(AuthoredNumber::Real(_)), _) if field.dtype.is_integer() => {
                F64
            }
            _ => field.dtype,
        };
        if T::WHOLE.is_none() && dtype.is_integer() { F64 } else { dtype }
    }
}

impl<T: ArithmeticOperation> Operator for Arithmetic<T> {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let (op, name) = (T::DECLARATION.name, &self.field);
        let numbers = |name: &str| -> Result<FieldSchema, String> {
            let field = flow.field(op, name)?;
            if NUMBERS.contains(&field.dtype) {
                return Ok(field.clone());
            }
            let advice = if field.dtype == BF16 { "; `cast` it to f32 before" } else { "" };
            Err(format!("{}{advice}", flow.needs(op, "numbers", name)))
        };
        let field = numbers(name)?;
        let by = match &self.operand {
            ArithmeticOperand::By(by) => Some(numbers(by)?),
            ArithmeticOperand::Value(_) => None,
        };
        let dtype = self.dtype(&field, by.as_ref());
        if let ArithmeticOperand::Value(value) = &self.operand {
            value.fits(dtype).map_err(|wanted| {
                let origin = flow.origin(name);
                format!("`{op}` `value` must be {wanted}, not {value}: `{name}` is {field}{origin}")
            })?;
        }
        let shape = match by {
            Some(by) if field.shape.is_empty() => by.shape,
            Some(by) if !by.shape.is_empty() => {
                let pairs = || field.shape.iter().zip(&by.shape);
                let alike =
                    |(a, b): (&Option<u32>, &Option<u32>)| a.zip(*b).is_none_or(|(a, b)| a == b);
                if field.shape.len() != by.shape.len() || !pairs().all(alike) {
                    return Err(format!(
                        "`{op}` needs fields of one shape, or one number: `{name}` is {field}{}, and the \
                         other {by}",
                        flow.origin(name)
                    ));
                }
                pairs().map(|(a, b)| a.or(*b)).collect()
            }
            _ => field.shape,
        };
        flow.write(op, name, FieldSchema { dtype, shape, range: None });
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        match &self.operand {
            ArithmeticOperand::Value(_) => TouchedFields::Replaces(&self.field),
            ArithmeticOperand::By(by) => TouchedFields::Combines { field: &self.field, by },
        }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let field = input.field()?;
        match &self.operand {
            ArithmeticOperand::Value(value) => {
                let (from, dtype) = (field.dtype, self.dtype(field, None));
                let value = value.bytes(dtype);
                Ok(transform(move |input, output, tools, _| {
                    let a = kernel::converted(from, dtype, input.bytes, &mut tools.pixels)?;
                    let bytes = kernel::compute::<T>(dtype, a, &value, a.len(), output)?;
                    Ok(OutputSize { bytes, size: input.size })
                }))
            }
            ArithmeticOperand::By(name) => {
                let by = input.by()?;
                let dtype = self.dtype(field, Some(by));
                Ok(Kernel::Combine(Box::new(kernel::Combination::<T>::new(field, by, name, dtype))))
            }
        }
    }
}

#[cfg(feature = "kernels")]
mod kernel {
    use super::*;
    use crate::kernels::integer;
    use crate::number::cast::kernel::convert;
    use gristmill_kernel::*;
    use half::f16;

    /// Computes with two fields.
    pub(super) struct Combination<T> {
        dtypes: [FieldDType; 2],
        /// Whether each is one number, which stands for all items of the other.
        single: [bool; 2],
        /// Whether images of one size are compared by their sides.
        is_image: bool,
        by: String,
        dtype: FieldDType,
        operation: std::marker::PhantomData<T>,
    }

    impl<T> Combination<T> {
        pub(super) fn new(
            field: &FieldSchema,
            by: &FieldSchema,
            name: &str,
            dtype: FieldDType,
        ) -> Self {
            let both = [field, by];
            let unsized_image = |field: &FieldSchema| matches!(field.shape[..], [height, width, _] if height.is_none() || width.is_none());
            Combination {
                dtypes: both.map(|field| field.dtype),
                single: both.map(|field| field.shape.is_empty()),
                is_image: both.iter().all(|field| unsized_image(field)),
                by: name.to_owned(),
                dtype,
                operation: std::marker::PhantomData,
            }
        }
    }

    impl<T: ArithmeticOperation> CombineKernel for Combination<T> {
        fn run(
            &self,
            [field, by]: [ValueView<'_>; 2],
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
        ) -> Result<OutputSize, String> {
            let [items, others] =
                [0, 1].map(|i| [field, by][i].bytes.len() / dtype_bytes(self.dtypes[i]));
            let name = &self.by;
            if self.single == [false, false]
                && (items != others || self.is_image && field.size != by.size)
            {
                return Err(format!(
                    "it has {items} items, and `{name}` {others}: both must have one shape"
                ));
            }
            let divides = T::WHOLE.is_none() && self.dtypes.iter().all(|dtype| dtype.is_integer());
            let value_bytes = dtype_bytes(self.dtypes[1]);
            let zero = |value: &[u8]| integer(self.dtypes[1], value) == Some(0);
            if divides && let Some(i) = by.bytes.chunks_exact(value_bytes).position(zero) {
                return Err(format!("it is divided by `{name}`, which is 0 at item {i}"));
            }
            let KernelScratch { pixels, image, .. } = tools;
            let a = converted(self.dtypes[0], self.dtype, field.bytes, pixels)?;
            let b = converted(self.dtypes[1], self.dtype, by.bytes, image)?;
            let (length, size) =
                if self.single[0] { (b.len(), by.size) } else { (a.len(), field.size) };
            let bytes = compute::<T>(self.dtype, a, b, length, output)?;
            Ok(OutputSize { bytes, size })
        }
    }

    /// The numbers in another dtype, which can hold them.
    pub(super) fn converted<'a>(
        from: FieldDType,
        to: FieldDType,
        bytes: &'a [u8],
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], String> {
        if from == to {
            return Ok(bytes);
        }
        let view = ValueView { bytes, size: [0, 0] };
        let made = convert(from, to, view, KernelOutput::Buffer(buffer))?;
        Ok(&buffer[..made.bytes])
    }

    /// Writes `length` bytes of results; one number stands for all items of the other operand.
    pub(super) fn compute<T: ArithmeticOperation>(
        dtype: FieldDType,
        a: &[u8],
        b: &[u8],
        length: usize,
        output: KernelOutput<'_>,
    ) -> Result<usize, String> {
        let out = output.take(length)?;
        macro_rules! each {
            ($type:ty, $result:expr) => {{
                const BYTES: usize = size_of::<$type>();
                fn numbers(bytes: &[u8]) -> impl Iterator<Item = $type> {
                    bytes.as_chunks::<BYTES>().0.iter().map(|x| <$type>::from_le_bytes(*x)).cycle()
                }
                let outs = out.as_chunks_mut::<BYTES>().0.iter_mut();
                for (i, ((to, a), b)) in outs.zip(numbers(a)).zip(numbers(b)).enumerate() {
                    let result: Result<$type, String> = $result(a, b);
                    *to = result.map_err(|why| format!("item {i}: {why}"))?.to_le_bytes();
                }
            }};
        }
        macro_rules! whole {
            ($type:ty) => {
                each!($type, |a: $type, b: $type| {
                    let result = T::WHOLE.and_then(|whole| whole(a.into(), b.into()));
                    result.and_then(|result| <$type>::try_from(result).ok()).ok_or_else(|| {
                        format!("{dtype} cannot hold {a} {} {b}: `cast` it before", T::SIGN)
                    })
                })
            };
        }
        match dtype {
            U8 => whole!(u8),
            U16 => whole!(u16),
            U64 => whole!(u64),
            I32 => whole!(i32),
            I64 => whole!(i64),
            F16 => each!(f16, |a: f16, b: f16| {
                Ok(f16::from_f32(T::SINGLE(a.to_f32(), b.to_f32())))
            }),
            F32 => each!(f32, |a, b| Ok(T::SINGLE(a, b))),
            F64 => each!(f64, |a, b| Ok(T::DOUBLE(a, b))),
            other => return Err(format!("cannot compute with {other}")),
        }
        Ok(length)
    }
}

#[cfg(feature = "kernels")]
#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_kernel::*;
    use serde_json::Value;

    fn dtype(name: &str) -> FieldDType {
        NUMBERS.iter().copied().find(|dtype| dtype.name() == name).unwrap()
    }

    /// The schema and the bytes of a stored operand: its dtype, `x` unless it is one number, and hex.
    fn stored(operand: &Value) -> (FieldSchema, Vec<u8>) {
        let text = |i: usize| operand[i].as_str().unwrap();
        let hex = text(2).as_bytes().chunks_exact(2);
        let bytes = hex.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
        let shape = text(1).chars().map(|_| None).collect();
        (FieldSchema { dtype: dtype(text(0)), shape, range: None }, bytes.collect())
    }

    /// The result of a case in numpy's words; none if the record is refused.
    fn run<T: ArithmeticOperation>(a: &Value, b: &Value) -> Option<(FieldDType, Vec<u8>)> {
        let (field, a) = stored(a);
        let by = b.is_array().then(|| stored(b));
        let operand = match (b.as_i64(), b.as_f64()) {
            _ if by.is_some() => ArithmeticOperand::By("y".into()),
            (Some(whole), _) => ArithmeticOperand::Value(AuthoredNumber::Whole(whole.into())),
            (_, real) => ArithmeticOperand::Value(AuthoredNumber::Real(real.unwrap())),
        };
        let op =
            Arithmetic::<T> { field: "x".into(), operand, operation: std::marker::PhantomData };
        let schema = by.as_ref().map(|(schema, _)| schema);
        let kernel = op.kernel(&KernelInput::new(Some(&field), &NoAssets).with(schema)).unwrap();
        let (mut tools, mut out) = (KernelScratch::default(), Vec::new());
        let view = |bytes| ValueView { bytes, size: [0, 0] };
        let output = KernelOutput::Buffer(&mut out);
        let made = match (&kernel, &by) {
            (Kernel::Combine(kernel), Some((_, b))) => {
                kernel.run([view(&a), view(b)], output, &mut tools)
            }
            (Kernel::Transform(kernel), None) => {
                kernel.run(view(&a), output, &mut tools, &mut OperatorDraws::fixed())
            }
            _ => panic!("{op:?}"),
        };
        let bytes = made.ok()?.bytes;
        Some((op.dtype(&field, schema), out[..bytes].to_vec()))
    }

    /// The numbers as bits, with one NaN for all.
    fn bits(dtype: FieldDType, bytes: &[u8]) -> Vec<u64> {
        let number = |value: &[u8]| {
            let mut wide = [0; 8];
            wide[..value.len()].copy_from_slice(value);
            let bits = u64::from_le_bytes(wide);
            let is_nan = match dtype {
                F16 => half::f16::from_bits(bits as u16).is_nan(),
                F32 => f32::from_bits(bits as u32).is_nan(),
                F64 => f64::from_bits(bits).is_nan(),
                _ => false,
            };
            if is_nan { u64::MAX } else { bits }
        };
        bytes.chunks_exact(dtype_bytes(dtype)).map(number).collect()
    }

    #[test]
    fn results_are_those_of_numpy() {
        let all = include_str!("../../tests/golden/arithmetic.json");
        let all: Value = serde_json::from_str(all).unwrap();
        let cases = all["cases"].as_array().unwrap();
        assert!(cases.len() > 2_000, "{}", cases.len());
        for case in cases {
            let (a, b) = (&case[1], &case[2]);
            let made = match case[0].as_str().unwrap() {
                "add" => run::<Addition>(a, b),
                "subtract" => run::<Subtraction>(a, b),
                "multiply" => run::<Multiplication>(a, b),
                _ => run::<Division>(a, b),
            };
            let wanted = case[3].is_array().then(|| stored(&case[3]));
            let wanted = wanted.map(|(schema, bytes)| (schema.dtype, bits(schema.dtype, &bytes)));
            assert_eq!(made.map(|(dtype, bytes)| (dtype, bits(dtype, &bytes))), wanted, "{case}");
        }
    }
}

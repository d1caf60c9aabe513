//! `cast`: the same numbers in another type.

use crate::prelude::*;

/// Numbers of any shape -> the same shape of `dtype`: u8, u16, i32, i64, u64, f16, bf16, f32 or f64. Rounds
/// to nearest, ties to even (`tf.cast` and torch truncate towards zero). Casts to integers saturate, also
/// for infinities; NaN becomes 0. Casts to floats are exactly those of TensorFlow and torch: values beyond
/// f16 become infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cast {
    pub field: String,
    pub dtype: FieldDType,
}

/// Least and largest value of an integer type; none if `cast` does not narrow the range to it.
fn bounds(dtype: FieldDType) -> Option<[f64; 2]> {
    match dtype {
        FieldDType::U8 => Some([0.0, 255.0]),
        FieldDType::U16 => Some([0.0, 65_535.0]),
        FieldDType::I32 => Some([f64::from(i32::MIN), f64::from(i32::MAX)]),
        FieldDType::U64 => Some([0.0, f64::MAX]),
        _ => None,
    }
}

impl OperatorDefinition for Cast {
    const DECLARATION: OperatorDeclaration =
        with_effect("cast", 1, OperatorEffect::Value).costs(200, 300);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "dtype",
            ParameterKind::Choice(&["u8", "u16", "i32", "i64", "u64", "f16", "bf16", "f32", "f64"]),
            "The type of what comes out.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        use FieldDType::{BF16, F16, F32, F64, I32, I64, U8, U16, U64};
        let dtype = params.read_choice("dtype", &[U8, U16, I32, I64, U64, F16, BF16, F32, F64])?;
        Ok(Cast { field: params.field()?, dtype })
    }
}

impl Operator for Cast {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("cast", &self.field)?;
        if input.dtype == FieldDType::Bytes {
            return Err(flow.needs("cast", "numbers", &self.field));
        }
        let dtype = self.dtype;
        // Values outside the type saturate.
        let range = input.range.map(|range| match bounds(dtype) {
            Some([least, most]) => {
                ValueRange { min: range.min.clamp(least, most), max: range.max.clamp(least, most) }
            }
            None => range,
        });
        let output = FieldSchema { dtype, range, ..input.clone() };
        flow.write("cast", &self.field, output);
        Ok(())
    }

    replaces_field!();

    fn does_nothing(&self) -> Option<&'static str> {
        // The caller compares the schemas before and after; the dtype is the same.
        Some("its input has that dtype already")
    }

    fn is_for_delivery(&self) -> bool {
        matches!(self.dtype, FieldDType::BF16 | FieldDType::F16)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(if self.dtype == given.dtype {
            Kernel::Nothing
        } else {
            let (from, to) = (given.dtype, self.dtype);
            transform(move |input, output, _, _| kernel::convert(from, to, input, output))
        })
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;
    use gristmill_kernel::*;
    use half::{bf16, f16};

    /// Numbers of one type -> numbers of another, rounded to nearest, ties to even.
    pub(crate) fn convert(
        from: FieldDType,
        to: FieldDType,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
    ) -> Result<OutputSize, String> {
        if matches!(to, FieldDType::Bytes | FieldDType::U32) {
            return Err(format!("cannot cast to {to}"));
        }
        let ValueView { bytes, size } = input;
        let values = bytes.len() / crate::kernels::dtype_bytes(from);
        let made = values * crate::kernels::dtype_bytes(to);
        let out = output.take(made)?;
        match from {
            FieldDType::U8 => write(bytes.iter().map(|x| f32::from(*x)), to, out),
            FieldDType::F16 => {
                let read = |x: &[u8; 2]| f16::from_le_bytes(*x).to_f32();
                write(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::BF16 => {
                let read = |x: &[u8; 2]| bf16::from_le_bytes(*x).to_f32();
                write(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::F32 => {
                let read = |x: &[u8; 4]| f32::from_le_bytes(*x);
                write(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::U16 => {
                let read = |x: &[u8; 2]| f32::from(u16::from_le_bytes(*x));
                write(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::I32 => {
                let read = |x: &[u8; 4]| i64::from(i32::from_le_bytes(*x));
                write_wide(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::U32 => {
                let read = |x: &[u8; 4]| i64::from(u32::from_le_bytes(*x));
                write_wide(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::I64 => {
                let read = |x: &[u8; 8]| i64::from_le_bytes(*x);
                write_wide(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::U64 => {
                let read = |x: &[u8; 8]| u64::from_le_bytes(*x);
                write_unsigned(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::F64 => {
                let read = |x: &[u8; 8]| f64::from_le_bytes(*x);
                write_double(bytes.as_chunks().0.iter().map(read), to, out);
            }
            FieldDType::Bytes => return Err("cannot cast bytes".to_owned()),
        }
        Ok(OutputSize { bytes: made, size })
    }

    /// Writes values as `to`, which [`convert`] has checked.
    fn write(values: impl Iterator<Item = f32>, to: FieldDType, out: &mut [u8]) {
        match to {
            // Rust's float to integer cast saturates, and maps NaN to 0.
            FieldDType::U8 => put(values.map(|x| [x.round_ties_even() as u8]), out),
            FieldDType::U16 => put(values.map(|x| (x.round_ties_even() as u16).to_le_bytes()), out),
            FieldDType::I32 => put(values.map(|x| (x.round_ties_even() as i32).to_le_bytes()), out),
            FieldDType::I64 => put(values.map(|x| (x.round_ties_even() as i64).to_le_bytes()), out),
            FieldDType::U64 => put(values.map(|x| (x.round_ties_even() as u64).to_le_bytes()), out),
            FieldDType::F16 => put(values.map(|x| f16::from_f32(x).to_le_bytes()), out),
            FieldDType::BF16 => put(values.map(|x| bf16::from_f32(x).to_le_bytes()), out),
            FieldDType::F32 => put(values.map(f32::to_le_bytes), out),
            FieldDType::F64 => put(values.map(|x| f64::from(x).to_le_bytes()), out),
            FieldDType::Bytes | FieldDType::U32 => {}
        }
    }

    /// As [`write`]; rounds to half precision once, not first to f32.
    fn write_double(values: impl Iterator<Item = f64>, to: FieldDType, out: &mut [u8]) {
        match to {
            FieldDType::U8 => put(values.map(|x| [x.round_ties_even() as u8]), out),
            FieldDType::U16 => put(values.map(|x| (x.round_ties_even() as u16).to_le_bytes()), out),
            FieldDType::I32 => put(values.map(|x| (x.round_ties_even() as i32).to_le_bytes()), out),
            FieldDType::I64 => put(values.map(|x| (x.round_ties_even() as i64).to_le_bytes()), out),
            FieldDType::U64 => put(values.map(|x| (x.round_ties_even() as u64).to_le_bytes()), out),
            FieldDType::F16 => put(values.map(|x| f16::from_f32(to_odd(x)).to_le_bytes()), out),
            FieldDType::BF16 => put(values.map(|x| bf16::from_f32(to_odd(x)).to_le_bytes()), out),
            FieldDType::F32 => put(values.map(|x| (x as f32).to_le_bytes()), out),
            FieldDType::F64 => put(values.map(f64::to_le_bytes), out),
            FieldDType::Bytes | FieldDType::U32 => {}
        }
    }

    /// As [`write_wide`].
    fn write_unsigned(values: impl Iterator<Item = u64>, to: FieldDType, out: &mut [u8]) {
        match to {
            FieldDType::U8 => put(values.map(|x| [x.min(255) as u8]), out),
            FieldDType::U16 => put(values.map(|x| (x.min(65_535) as u16).to_le_bytes()), out),
            FieldDType::I32 => {
                put(values.map(|x| (x.min(i32::MAX as u64) as i32).to_le_bytes()), out)
            }
            FieldDType::I64 => {
                put(values.map(|x| (x.min(i64::MAX as u64) as i64).to_le_bytes()), out)
            }
            FieldDType::U64 => put(values.map(u64::to_le_bytes), out),
            FieldDType::F16 => put(values.map(|x| f16::from_f32(magnitude(x)).to_le_bytes()), out),
            FieldDType::BF16 => {
                put(values.map(|x| bf16::from_f32(magnitude(x)).to_le_bytes()), out)
            }
            FieldDType::F32 => put(values.map(|x| (x as f32).to_le_bytes()), out),
            FieldDType::F64 => put(values.map(|x| (x as f64).to_le_bytes()), out),
            FieldDType::Bytes | FieldDType::U32 => {}
        }
    }

    /// As [`write`]; rounds integers that f32 cannot hold once, not first to f32.
    fn write_wide(values: impl Iterator<Item = i64>, to: FieldDType, out: &mut [u8]) {
        match to {
            FieldDType::U8 => put(values.map(|x| [x.clamp(0, 255) as u8]), out),
            FieldDType::U16 => put(values.map(|x| (x.clamp(0, 65_535) as u16).to_le_bytes()), out),
            FieldDType::I32 => put(
                values.map(|x| (x.clamp(i32::MIN.into(), i32::MAX.into()) as i32).to_le_bytes()),
                out,
            ),
            FieldDType::I64 => put(values.map(i64::to_le_bytes), out),
            FieldDType::U64 => put(values.map(|x| (x.max(0) as u64).to_le_bytes()), out),
            FieldDType::F16 => {
                put(values.map(|x| f16::from_f32(round_to_odd(x)).to_le_bytes()), out)
            }
            FieldDType::BF16 => {
                put(values.map(|x| bf16::from_f32(round_to_odd(x)).to_le_bytes()), out)
            }
            FieldDType::F32 => put(values.map(|x| (x as f32).to_le_bytes()), out),
            FieldDType::F64 => put(values.map(|x| (x as f64).to_le_bytes()), out),
            FieldDType::Bytes | FieldDType::U32 => {}
        }
    }

    /// Round to odd: `x` truncated to the 24 bits of an f32, with the last bit set if any was cut off.
    /// Rounding the result to fewer bits equals rounding `x` directly.
    fn round_to_odd(x: i64) -> f32 {
        let value = magnitude(x.unsigned_abs());
        if x < 0 { -value } else { value }
    }

    /// As [`round_to_odd`].
    fn magnitude(x: u64) -> f32 {
        let cut = (64 - x.leading_zeros()).saturating_sub(24);
        let kept = x >> cut << cut;
        let odd = if kept == x { 0 } else { 1_u64 << cut };
        (kept | odd) as f32
    }

    /// As [`round_to_odd`].
    fn to_odd(x: f64) -> f32 {
        let near = x as f32;
        if f64::from(near) == x || x.is_nan() {
            return near;
        }
        // The bits of a float grow with its magnitude, so bits - 1 is the next float towards zero.
        let beyond = u32::from(f64::from(near).abs() > x.abs());
        f32::from_bits((near.to_bits() - beyond) | 1)
    }

    fn put<const N: usize>(values: impl Iterator<Item = [u8; N]>, out: &mut [u8]) {
        for (value, to) in values.zip(out.as_chunks_mut::<N>().0) {
            *to = value;
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn cast(values: &[f32], to: FieldDType) -> Vec<u8> {
            let mut out = vec![0xaa; values.len() * crate::kernels::dtype_bytes(to)];
            write(values.iter().copied(), to, &mut out);
            out
        }

        #[test]
        fn u8_rounds_to_even_and_saturates() {
            let values = [0.5, 1.5, 2.5, 254.5, 255.4, 300.0, -3.0, f32::NAN, f32::INFINITY];
            assert_eq!(cast(&values, FieldDType::U8), [0, 2, 2, 254, 255, 255, 0, 0, 255]);
            assert_eq!(
                cast(&[-1.5, 3e9], FieldDType::I32),
                [[254, 255, 255, 255], [255, 255, 255, 127]].concat()
            );
            assert_eq!(cast(&[-1.5, 258.4], FieldDType::U16), [0, 0, 2, 1]);
        }

        #[test]
        fn halves_round_to_even() {
            let f16s = cast(&[1.0, 65504.0, 1e6, 2049.0], FieldDType::F16);
            assert_eq!(f16s, [0x00, 0x3c, 0xff, 0x7b, 0x00, 0x7c, 0x00, 0x68]);
            let bf16s = cast(&[1.0, 257.0, 259.0], FieldDType::BF16);
            assert_eq!(bf16s, [0x80, 0x3f, 0x80, 0x43, 0x82, 0x43]);
        }

        /// Checks every pair of types against independent arithmetic: values outside an integer type saturate,
        /// and NaN becomes 0.
        #[test]
        fn every_pair_of_types_saturates() {
            let values: Vec<f64> = vec![
                0.0,
                1.0,
                -1.0,
                0.5,
                1.5,
                2.5,
                -0.5,
                -1.5,
                127.0,
                128.0,
                255.0,
                255.5,
                256.0,
                300.0,
                32_767.5,
                65_504.0,
                65_535.0,
                65_536.0,
                70_000.0,
                -70_000.0,
                2_147_483_647.0,
                2_147_483_648.0,
                -2_147_483_648.0,
                -2_147_483_649.0,
                4_294_967_295.0,
                1e10,
                -1e10,
                9.3e18,
                -9.3e18,
                1e20,
                -1e20,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
            ];
            let froms = [
                FieldDType::U64,
                FieldDType::F64,
                FieldDType::U8,
                FieldDType::U16,
                FieldDType::I32,
                FieldDType::U32,
                FieldDType::I64,
                FieldDType::F16,
                FieldDType::BF16,
                FieldDType::F32,
            ];
            let tos = [
                FieldDType::U64,
                FieldDType::F64,
                FieldDType::U8,
                FieldDType::U16,
                FieldDType::I32,
                FieldDType::I64,
                FieldDType::F16,
                FieldDType::BF16,
                FieldDType::F32,
            ];
            for from in froms {
                // Encoded as `from`, saturated by Rust's own conversions.
                let stored: Vec<u8> = values
                    .iter()
                    .flat_map(|value| crate::kernels::value_bytes(from, *value))
                    .collect();
                let step = crate::kernels::dtype_bytes(from);
                for to in tos {
                    let mut out = Vec::new();
                    let view = ValueView { bytes: &stored, size: [0, 0] };
                    let made = convert(from, to, view, KernelOutput::Buffer(&mut out));
                    let size = crate::kernels::dtype_bytes(to);
                    assert_eq!(made.unwrap().bytes, values.len() * size);
                    for (i, (bytes, made)) in stored.chunks(step).zip(out.chunks(size)).enumerate()
                    {
                        let expected = expected(from, bytes, to);
                        assert_eq!(made, expected, "{from} to {to:?}: value {} ({})", i, values[i]);
                    }
                }
            }
        }

        /// Converts `bytes` of type `from` to `to`.
        fn expected(from: FieldDType, bytes: &[u8], to: FieldDType) -> Vec<u8> {
            if let Some(whole) = crate::kernels::integer(from, bytes) {
                return match to {
                    FieldDType::U8 => (whole.clamp(0, 255) as u8).to_le_bytes().to_vec(),
                    FieldDType::U16 => (whole.clamp(0, 65_535) as u16).to_le_bytes().to_vec(),
                    FieldDType::I32 => (whole.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
                        .to_le_bytes()
                        .to_vec(),
                    FieldDType::I64 => (whole.min(i64::MAX.into()) as i64).to_le_bytes().to_vec(),
                    FieldDType::U64 => (whole.max(0) as u64).to_le_bytes().to_vec(),
                    FieldDType::F64 => (whole as f64).to_le_bytes().to_vec(),
                    // These integers, except the largest, are exact in f32 or far from a tie.
                    FieldDType::F16 => f16::from_f32(whole as f32).to_le_bytes().to_vec(),
                    FieldDType::BF16 => bf16::from_f32(whole as f32).to_le_bytes().to_vec(),
                    FieldDType::F32 => (whole as f32).to_le_bytes().to_vec(),
                    other => panic!("nothing is cast to {other}"),
                };
            }
            let real = match from {
                FieldDType::F16 => f64::from(f16::from_le_bytes(bytes.try_into().unwrap())),
                FieldDType::BF16 => f64::from(bf16::from_le_bytes(bytes.try_into().unwrap())),
                FieldDType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
                _ => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            };
            let bounded = |low: f64, high: f64| {
                if real.is_nan() { 0 } else { real.round_ties_even().clamp(low, high) as i128 }
            };
            match to {
                FieldDType::U8 => (bounded(0.0, 255.0) as u8).to_le_bytes().to_vec(),
                FieldDType::U16 => (bounded(0.0, 65_535.0) as u16).to_le_bytes().to_vec(),
                FieldDType::I32 => {
                    (bounded(-2_147_483_648.0, 2_147_483_647.0) as i32).to_le_bytes().to_vec()
                }
                FieldDType::I64 => {
                    let wide = bounded(-1e30, 1e30).clamp(i64::MIN.into(), i64::MAX.into());
                    (wide as i64).to_le_bytes().to_vec()
                }
                FieldDType::U64 => {
                    let wide = bounded(0.0, 1e30).clamp(0, u64::MAX.into());
                    (wide as u64).to_le_bytes().to_vec()
                }
                FieldDType::F64 => real.to_le_bytes().to_vec(),
                FieldDType::F16 => f16::from_f32(real as f32).to_le_bytes().to_vec(),
                FieldDType::BF16 => bf16::from_f32(real as f32).to_le_bytes().to_vec(),
                FieldDType::F32 => (real as f32).to_le_bytes().to_vec(),
                other => panic!("nothing is cast to {other}"),
            }
        }

        #[test]
        fn doubles_are_rounded_once() {
            let double = |x: f64, to: FieldDType| {
                let mut out = vec![0; crate::kernels::dtype_bytes(to)];
                write_double([x].into_iter(), to, &mut out);
                out
            };
            // Above and below a tie of f16 by less than f32 can represent.
            let tie = 1.0 + 2_f64.powi(-11);
            let up = f16::from_f32(1.0 + 2_f32.powi(-10));
            for sign in [1.0, -1.0] {
                let signed = |x: f16| if sign > 0.0 { x } else { -x }.to_le_bytes();
                let made = |x: f64| double(sign * x, FieldDType::F16);
                assert_eq!(made(tie + 2_f64.powi(-40)), signed(up));
                assert_eq!(made(tie), signed(f16::ONE), "a tie goes to even");
                assert_eq!(made(tie - 2_f64.powi(-40)), signed(f16::ONE));
                assert_eq!(made(1e-60), signed(f16::ZERO));
                assert_eq!(made(1e300), signed(f16::INFINITY));
                assert_eq!(made(65_520.0 - 1e-9), signed(f16::MAX));
            }
            assert_eq!(double(0.1, FieldDType::F64), 0.1_f64.to_le_bytes());
            assert_eq!(double(1e39, FieldDType::F32), f32::INFINITY.to_le_bytes());
            assert_eq!(
                double(9_007_199_254_740_993.5, FieldDType::I64),
                9_007_199_254_740_994_i64.to_le_bytes()
            );
            assert!(
                f16::from_le_bytes(double(f64::NAN, FieldDType::F16).try_into().unwrap()).is_nan()
            );
        }

        #[test]
        fn unsigned_numbers_are_exact() {
            let unsigned = |x: u64, to: FieldDType| {
                let mut out = vec![0; crate::kernels::dtype_bytes(to)];
                write_unsigned([x].into_iter(), to, &mut out);
                out
            };
            assert_eq!(unsigned(u64::MAX, FieldDType::U64), u64::MAX.to_le_bytes());
            assert_eq!(unsigned(u64::MAX, FieldDType::I64), i64::MAX.to_le_bytes());
            assert_eq!(unsigned(u64::MAX, FieldDType::F32), 2_f32.powi(64).to_le_bytes());
            let above = (1_u64 << 63) + (1 << 55) + 1;
            let up = bf16::from_f64((1_u64 << 63) as f64 * (1.0 + 1.0 / 128.0));
            assert_eq!(unsigned(above, FieldDType::BF16), up.to_le_bytes());
        }

        #[test]
        fn integers_are_rounded_once() {
            let wide = |x: i64, to: FieldDType| {
                let mut out = vec![0; crate::kernels::dtype_bytes(to)];
                write_wide([x].into_iter(), to, &mut out);
                out
            };
            assert_eq!(wide(-1, FieldDType::U8), [0]);
            assert_eq!(wide(256, FieldDType::U8), [255]);
            assert_eq!(wide(70_000, FieldDType::U16), [255, 255]);
            assert_eq!(wide(1 << 40, FieldDType::I32), i32::MAX.to_le_bytes());
            assert_eq!(wide(-5, FieldDType::I64), (-5_i64).to_le_bytes());
            assert_eq!(wide(16_777_219, FieldDType::F32), 16_777_220_f32.to_le_bytes());
            // Just above the tie between two bf16 values, by less than f32 or f64 can tell.
            let above = (1_i64 << 62) + (1 << 54) + 1;
            let up = bf16::from_f64((1_u64 << 62) as f64 * (1.0 + 1.0 / 128.0));
            assert_eq!(wide(above, FieldDType::BF16), up.to_le_bytes());
            assert_eq!(wide(-above, FieldDType::BF16), (-up).to_le_bytes());
            assert_eq!(
                wide(i64::MIN, FieldDType::BF16),
                bf16::from_f64(-(2_f64.powi(63))).to_le_bytes()
            );
        }
    }
}

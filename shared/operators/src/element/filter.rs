//! `filter`: drops elements that fail a test.

use crate::prelude::*;

/// Most values of `in`.
const MAX_VALUES: usize = 65_536;

/// Keeps the elements whose `field` passes every given test. The tests compare the value of a number, and
/// the length of a sequence or byte string. They compare in the field's own type: integers exactly, floats
/// after rounding the bound to that type. A bound that the type cannot hold is refused. Dropped elements
/// are not errors and are not listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filter {
    pub field: String,
    pub min: Option<AuthoredNumber>,
    pub max: Option<AuthoredNumber>,
    #[serde(rename = "in")]
    pub one_of: Option<Vec<AuthoredNumber>>,
}

impl OperatorDefinition for Filter {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::Filter,
        ..with_effect("filter", 2, OperatorEffect::Select).costs(100, 0)
    };

    const PARAMETERS: &'static [Parameter] = &[
        required(
            "field",
            ParameterKind::Field,
            "The number, sequence or byte string that is tested.",
        ),
        absent("min", ANY_NUMBER, "Smallest value or length kept."),
        absent("max", ANY_NUMBER, "Largest value or length kept."),
        absent("in", ParameterKind::List(&ANY_NUMBER), "Only these values or lengths are kept."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let mut bound = |key| {
            let node = params.given(key);
            node.map(|node| AuthoredNumber::parse(params, key, node)).transpose()
        };
        let (min, max) = (bound("min")?, bound("max")?);
        let one_of = params.given("in").map(|node| values(params, node)).transpose()?;
        if min.is_none() && max.is_none() && one_of.is_none() {
            return Err(params.error("`filter` needs a test: `min`, `max` or `in`"));
        }
        check_bounds(params, "filter", min, max)?;
        let lies_within = |value: &AuthoredNumber| {
            min.is_none_or(|min| *value >= min) && max.is_none_or(|max| *value <= max)
        };
        if one_of.as_ref().is_some_and(|values| !values.iter().any(lies_within)) {
            return Err(
                params.error("`filter` keeps nothing: no value of `in` lies within its bounds")
            );
        }
        Ok(Filter { field, min, max, one_of })
    }
}

impl Operator for Filter {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.field("filter", &self.field)?;
        let measured = field.is_sequence() || field.shape.is_empty();
        if !measured || matches!(field.dtype, FieldDType::F16 | FieldDType::BF16) {
            return Err(format!(
                "`filter` tests a number, or the length of a sequence, but `{}` is {field}{}",
                self.field,
                flow.origin(&self.field)
            ));
        }
        for (key, number) in self.numbers() {
            number.fits(compared_dtype(field.is_sequence(), field.dtype)).map_err(|wanted| {
                let what = if field.is_sequence() { "the length of " } else { "" };
                let (name, origin) = (&self.field, flow.origin(&self.field));
                format!(
                    "`filter` `{key}` must be {wanted}, not {number}: it tests {what}`{name}`, which \
                     is {field}{origin}"
                )
            })?;
        }
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Reads(&self.field)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(Kernel::Filter(Box::new(kernel::FilterPredicate::new(self, given))))
    }
}

impl Filter {
    /// Every bound or listed value, with the name of its parameter.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, AuthoredNumber)> {
        let bounds = [("min", self.min), ("max", self.max)];
        let bounds = bounds.into_iter().filter_map(|(key, bound)| Some((key, bound?)));
        bounds.chain(self.one_of.iter().flatten().map(|number| ("in", *number)))
    }
}

/// The dtype of the comparison: u32 for the length of a sequence, else the field's own.
pub const fn compared_dtype(is_sequence: bool, dtype: FieldDType) -> FieldDType {
    if is_sequence { FieldDType::U32 } else { dtype }
}

fn values(
    params: &MappingReader<'_>,
    node: &SyntaxNode,
) -> Result<Vec<AuthoredNumber>, PipelineError> {
    match &node.value {
        NodeValue::Seq(items) if (1..=MAX_VALUES).contains(&items.len()) => {
            items.iter().map(|item| AuthoredNumber::parse(params, "in", item)).collect()
        }
        _ => Err(node.error(format!("`filter` `in` must be a list of 1 to {MAX_VALUES} numbers"))),
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;
    use gristmill_kernel::*;

    /// Tests the value of a number, or the length of a sequence.
    #[derive(Debug)]
    pub(crate) struct FilterPredicate {
        /// Bytes of one item if the test is on a sequence's length; none if it is on a value.
        item_bytes: Option<usize>,
        dtype: FieldDType,
        bounds: Bounds,
    }

    /// Bounds and listed values, in the type of the comparison.
    #[derive(Debug)]
    enum Bounds {
        Whole(Within<i128>),
        Real(Within<f32>),
        Double(Within<f64>),
    }

    #[derive(Debug)]
    struct Within<T> {
        min: Option<T>,
        max: Option<T>,
        one_of: Option<Vec<T>>,
    }

    impl<T: PartialOrd + Copy> Within<T> {
        fn new(op: &Filter, of: impl Fn(AuthoredNumber) -> T) -> Self {
            let one_of = op.one_of.as_ref().map(|numbers| {
                let mut numbers: Vec<T> = numbers.iter().map(|number| of(*number)).collect();
                // The numbers are finite, so any two compare.
                numbers.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
                numbers
            });
            Within { min: op.min.map(&of), max: op.max.map(&of), one_of }
        }

        /// NaN passes no test.
        fn keeps(&self, value: T) -> bool {
            let listed = |numbers: &Vec<T>| {
                let at = numbers.partition_point(|number| *number < value);
                numbers.get(at).is_some_and(|number| *number == value)
            };
            self.min.is_none_or(|min| value >= min)
                && self.max.is_none_or(|max| value <= max)
                && self.one_of.as_ref().is_none_or(listed)
        }
    }

    impl FilterPredicate {
        pub(crate) fn new(op: &Filter, field: &FieldSchema) -> Self {
            let sequence = field.is_sequence();
            let item_bytes = field.item_bytes().filter(|_| sequence).map(|bytes| bytes as usize);
            let bounds = match field.dtype {
                FieldDType::F32 if !sequence => {
                    Bounds::Real(Within::new(op, AuthoredNumber::single))
                }
                FieldDType::F64 if !sequence => {
                    Bounds::Double(Within::new(op, AuthoredNumber::real))
                }
                // The pipeline checked that each number is whole.
                _ => Bounds::Whole(Within::new(op, |number| match number {
                    AuthoredNumber::Whole(number) => number,
                    AuthoredNumber::Real(number) => number as i128,
                })),
            };
            FilterPredicate { item_bytes, dtype: field.dtype, bounds }
        }
    }

    impl PredicateKernel for FilterPredicate {
        fn keeps(&self, input: ValueView<'_>, _: &mut OperatorDraws) -> Result<bool, String> {
            let none = "its value is not one number";
            match (&self.bounds, self.item_bytes) {
                (Bounds::Real(within), _) => {
                    let bytes = input.bytes.try_into().map_err(|_| none)?;
                    Ok(within.keeps(f32::from_le_bytes(bytes)))
                }
                (Bounds::Double(within), _) => {
                    let bytes = input.bytes.try_into().map_err(|_| none)?;
                    Ok(within.keeps(f64::from_le_bytes(bytes)))
                }
                (Bounds::Whole(within), Some(item_bytes)) => {
                    Ok(within.keeps((input.bytes.len() / item_bytes) as i128))
                }
                (Bounds::Whole(within), None) => {
                    Ok(within.keeps(crate::kernels::integer(self.dtype, input.bytes).ok_or(none)?))
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn kept(tests: &str, dtype: FieldDType, values: &[Vec<u8>]) -> Vec<usize> {
            let op = Filter { field: "x".into(), min: None, max: None, one_of: None };
            let number = |text: &str| match text.parse::<i128>() {
                Ok(number) => AuthoredNumber::Whole(number),
                Err(_) => AuthoredNumber::Real(text.parse().unwrap()),
            };
            let op = match tests.split_once(' ').unwrap() {
                ("min", bound) => Filter { min: Some(number(bound)), ..op },
                ("max", bound) => Filter { max: Some(number(bound)), ..op },
                (_, listed) => {
                    Filter { one_of: Some(listed.split(' ').map(number).collect()), ..op }
                }
            };
            let test = FilterPredicate::new(&op, &FieldSchema::fixed(dtype, []));
            let keeps = |bytes: &Vec<u8>| {
                test.keeps(ValueView { bytes, size: [0, 0] }, &mut OperatorDraws::fixed()).unwrap()
            };
            (0..values.len()).filter(|i| keeps(&values[*i])).collect()
        }

        #[test]
        fn integers_are_compared_exactly() {
            let i64s = [
                i64::MIN,
                i64::MIN + 1,
                -1,
                0,
                9_007_199_254_740_992,
                9_007_199_254_740_993,
                i64::MAX - 1,
                i64::MAX,
            ];
            let i64s = i64s.map(|x| x.to_le_bytes().to_vec());
            let kept_of = |tests: &str| kept(tests, FieldDType::I64, &i64s);
            assert_eq!(kept_of("in 9007199254740993"), [5]);
            assert_eq!(kept_of("in 9223372036854775807 -9223372036854775808 0"), [0, 3, 7]);
            assert_eq!(kept_of("min 9223372036854775807"), [7]);
            assert_eq!(kept_of("max -9223372036854775808"), [0]);
            assert_eq!(kept_of("max 9007199254740992"), [0, 1, 2, 3, 4]);
            let u64s =
                [0, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX].map(|x| x.to_le_bytes().to_vec());
            assert_eq!(kept("min 18446744073709551615", FieldDType::U64, &u64s), [3]);
            assert_eq!(kept("in 9223372036854775808", FieldDType::U64, &u64s), [1]);
        }

        #[test]
        fn f64_is_compared_as_f64() {
            let f64s = [0.1, f64::from(0.1_f32), 0.3, 0.1 + 0.2, f64::NAN, 9_007_199_254_740_992.0];
            let f64s = f64s.map(|x: f64| x.to_le_bytes().to_vec());
            let kept_of = |tests: &str| kept(tests, FieldDType::F64, &f64s);
            assert_eq!(kept_of("in 0.1 0.30000000000000004"), [0, 3]);
            assert_eq!(kept_of("max 0.3"), [0, 1, 2]);
            assert_eq!(kept_of("min 0.30000000000000004"), [3, 5]);
        }

        #[test]
        fn floats_are_compared_as_f32() {
            let f32s = [0.1_f32, 0.2, f32::NAN, f32::INFINITY, -0.0, 16_777_216.0];
            let f32s = f32s.map(|x| x.to_le_bytes().to_vec());
            let kept_of = |tests: &str| kept(tests, FieldDType::F32, &f32s);
            assert_eq!(kept_of("in 0.1 0"), [0, 4]);
            assert_eq!(kept_of("min 0.2"), [1, 3, 5]);
            assert_eq!(kept_of("max 0.1"), [0, 4]);
            assert_eq!(kept_of("in 16777217"), [5]);
        }
    }
}

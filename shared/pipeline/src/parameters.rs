//! Readers of parameters: kind, range and default are those of the declaration.
//!
//! A reader panics if the declaration is not of its kind, or if its default is no value of it. A test
//! of each registry parses every operator with and without each parameter, so that none does.

use crate::{
    DefaultValue, MappingReader, Parameter, ParameterKind, PipelineError, SyntaxNode,
    node::NodeValue,
};
use std::{borrow::Cow, ops::RangeInclusive};

/// The value of `key`. `None` if it is absent or null, which the canonical form writes for absent
/// values.
pub fn optional<'a>(params: &mut MappingReader<'a>, key: &'static str) -> Option<&'a SyntaxNode> {
    params.get(key).filter(|node| node.value != NodeValue::Null)
}

/// The given value of a parameter, or its default. `None` if it is absent and has no default.
///
/// # Errors
/// If it is required and absent.
pub fn value<'a>(
    params: &mut MappingReader<'a>,
    parameter: &Parameter,
) -> Result<Option<Cow<'a, SyntaxNode>>, PipelineError> {
    let name = parameter.name;
    if let Some(node) = params.get(name) {
        return Ok(Some(Cow::Borrowed(node)));
    }
    match parameter.default {
        DefaultValue::Required => params.require(name).map(|node| Some(Cow::Borrowed(node))),
        DefaultValue::Absent => Ok(None),
        DefaultValue::Value(text) => match SyntaxNode::parse(text) {
            Ok(node) => Ok(Some(Cow::Owned(node))),
            Err(error) => panic!("the default of `{name}`: {error}"),
        },
    }
}

/// As [`value`], of a parameter that is required or has a default.
///
/// # Errors
/// If it is required and absent.
pub fn present<'a>(
    params: &mut MappingReader<'a>,
    parameter: &Parameter,
) -> Result<Cow<'a, SyntaxNode>, PipelineError> {
    let value = value(params, parameter)?;
    Ok(value.unwrap_or_else(|| panic!("`{}` has no default", parameter.name)))
}

/// Both ends of the numbers that a parameter takes, alone or in a list.
pub fn numbers_of(parameter: &Parameter) -> RangeInclusive<f64> {
    match parameter.kind {
        ParameterKind::Number { min, max }
        | ParameterKind::List(&ParameterKind::Number { min, max }) => min..=max,
        kind => panic!("`{}` is {kind}", parameter.name),
    }
}

/// Both ends of the whole numbers that a parameter takes, alone, in a list or in a mapping.
pub fn wholes_of(parameter: &Parameter) -> RangeInclusive<u32> {
    let (min, max) = match parameter.kind {
        ParameterKind::Whole { min, max }
        | ParameterKind::List(&ParameterKind::Whole { min, max })
        | ParameterKind::Map(&ParameterKind::Whole { min, max }) => (min, max),
        ParameterKind::Size { max } => (1, max),
        kind => panic!("`{}` is {kind}", parameter.name),
    };
    let [min, max] = [min, max].map(|bound| u32::try_from(bound).unwrap_or(u32::MAX));
    min..=max
}

/// Reads a whole number.
///
/// # Errors
/// If the value is none, or out of range.
pub fn whole(params: &mut MappingReader<'_>, parameter: &Parameter) -> Result<u32, PipelineError> {
    let node = present(params, parameter)?;
    params.whole(parameter.name, &node, wholes_of(parameter))
}

/// Reads a number.
///
/// # Errors
/// If the value is none, or out of range.
pub fn number(params: &mut MappingReader<'_>, parameter: &Parameter) -> Result<f64, PipelineError> {
    let node = present(params, parameter)?;
    params.number(parameter.name, &node, numbers_of(parameter))
}

/// Reads true or false.
///
/// # Errors
/// If the value is neither.
pub fn flag(params: &mut MappingReader<'_>, parameter: &Parameter) -> Result<bool, PipelineError> {
    let node = present(params, parameter)?;
    match node.value {
        NodeValue::Bool(value) => Ok(value),
        _ => Err(params.wrong(parameter.name, &node, "true or false")),
    }
}

/// Reads one of the declared names; `values` has the meaning of each, in the same order.
///
/// # Errors
/// If the value is none of the names.
pub fn choice<T: Copy>(
    params: &mut MappingReader<'_>,
    parameter: &Parameter,
    values: &[T],
) -> Result<T, PipelineError> {
    let ParameterKind::Choice(names) = parameter.kind else {
        panic!("`{}` is no choice", parameter.name)
    };
    assert_eq!(names.len(), values.len(), "the values of `{}`", parameter.name);
    let choices: Vec<(&str, T)> = names.iter().copied().zip(values.iter().copied()).collect();
    let node = present(params, parameter)?;
    params.choice(parameter.name, &node, &choices)
}

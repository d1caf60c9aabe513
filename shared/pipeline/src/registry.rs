//! The set of operators that a program has, by name.

use crate::{
    AssetReference, BoxedOperator, Cardinality, MappingReader, OperatorDeclaration,
    OperatorDefinition, OperatorEffect, OperatorScope, Parameter, PipelineError, PipelineStage,
    external::ExternalOperator,
    node::{NodeValue, SyntaxNode, shown},
    pipeline::MAX_OPS,
    table::nearest,
};

use serde::Serialize;

/// Maximum length of an operator's name, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// One operator of a [`OperatorRegistry`]. Serialises as `gristmill operators --json` prints it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RegisteredOperator {
    #[serde(flatten)]
    pub declaration: &'static OperatorDeclaration,
    pub parameters: &'static [Parameter],
    #[serde(skip)]
    parse: fn(&mut MappingReader<'_>) -> Result<BoxedOperator, PipelineError>,
}

impl RegisteredOperator {
    fn from_definition<T: OperatorDefinition>() -> Self {
        RegisteredOperator {
            declaration: const { &T::DECLARATION },
            parameters: T::PARAMETERS,
            parse: |params| {
                params.declare(T::PARAMETERS);
                T::parse(params).map(BoxedOperator::new)
            },
        }
    }

    /// Reads the operator's parameters.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    pub fn parse(&self, params: &mut MappingReader<'_>) -> Result<BoxedOperator, PipelineError> {
        (self.parse)(params)
    }
}

/// Operators in the order of the documentation. Needed to read a pipeline.
#[derive(Clone, Debug, Default)]
pub struct OperatorRegistry {
    entries: Vec<RegisteredOperator>,
}

impl OperatorRegistry {
    /// A registry without operators.
    pub const fn new() -> Self {
        OperatorRegistry { entries: Vec::new() }
    }

    /// Adds `T`, an operator of this project.
    #[must_use]
    pub fn and<T: OperatorDefinition>(mut self) -> Self {
        self.entries.push(RegisteredOperator::from_definition::<T>());
        self
    }

    /// Adds `T`, an operator of a user. Its name is `crate.op`; the dot keeps it apart from present
    /// and future operators of this project.
    ///
    /// # Errors
    /// If the name is invalid or taken, or if the declaration is not allowed for operators of
    /// users.
    pub fn with<T: OperatorDefinition>(mut self) -> Result<Self, String> {
        let OperatorDeclaration { name, version, cardinality, scope, effect, .. } = T::DECLARATION;
        check_name(name)?;
        let whole_elements =
            cardinality == Cardinality::OneToOne && scope == OperatorScope::Element;
        if !whole_elements || effect == OperatorEffect::Select || version == 0 {
            return Err(format!(
                "operator `{name}` must make one element of one (cardinality, scope, effect) and \
                 have a version of at least 1"
            ));
        }
        if self.get(name).is_some() {
            return Err(format!("there are two operators `{name}`; rename one"));
        }
        self.entries.push(RegisteredOperator::from_definition::<T>());
        Ok(self)
    }

    /// The operator called `name`.
    pub fn get(&self, name: &str) -> Option<&RegisteredOperator> {
        self.entries.iter().find(|entry| entry.declaration.name == name)
    }

    /// Every operator, in the order of registration.
    pub fn entries(&self) -> &[RegisteredOperator] {
        &self.entries
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.declaration.name)
    }
}

/// Checks that a name is `crate.op`; the dot keeps it apart from present and future operators of
/// this project.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let part = |part: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        !part.is_empty() && part.bytes().all(plain)
    };
    let mut parts = name.split('.');
    let two = parts.by_ref().take(2).filter(|name| part(name)).count() == 2;
    if two && parts.next().is_none() && name.len() <= MAX_NAME_BYTES {
        Ok(())
    } else {
        Err(format!(
            "an operator of a user is called `crate.op`, lower-case letters, digits and _ on both \
             sides of one dot, not {}",
            crate::node::shown(name)
        ))
    }
}

pub(crate) fn op_nodes(node: &SyntaxNode) -> Result<&[SyntaxNode], PipelineError> {
    match &node.value {
        NodeValue::Seq(ops) if ops.len() > MAX_OPS => {
            Err(node.error(format!("`ops` has {} entries; the limit is {MAX_OPS}", ops.len())))
        }
        NodeValue::Seq(ops) => Ok(ops),
        _ => Err(node.error(format!("`ops` must be a list of operators, not {}", node.shown()))),
    }
}

/// Reads `- name`, or `- name: { parameters }`.
pub(crate) fn parse_stage(
    node: &SyntaxNode,
    registry: &OperatorRegistry,
) -> Result<PipelineStage, PipelineError> {
    let (name, params) = match &node.value {
        NodeValue::Str(name) => (name, None),
        NodeValue::Map(entries) => match entries.as_slice() {
            [(SyntaxNode { value: NodeValue::Str(name), .. }, params)] => (name, Some(params)),
            [(first, _), (second, _), ..] => {
                return Err(second.error(format!(
                    "an op is one name with its parameters below it; {} stands beside {}: indent \
                     it further, or start it with a dash",
                    second.shown(),
                    first.shown()
                )));
            }
            _ => return Err(node.error("an op is a name, or a name with its parameters")),
        },
        _ => {
            let found = node.shown();
            return Err(node.error(format!("an op is a name with its parameters, not {found}")));
        }
    };
    let mut params = match params {
        Some(params) => MappingReader::new(format!("`{}`", cut(name)), params)?,
        None => MappingReader::empty(format!("`{}`", cut(name)), node.line),
    };
    let entry = registry.get(name).ok_or_else(|| unknown(name, node, registry))?;
    let op = if name.contains('.') {
        BoxedOperator::new(ExternalOperator::parse(entry, &mut params)?)
    } else {
        entry.parse(&mut params)?
    };
    let keep_position = params.bool("keep_position", false)?;
    let assume_commutes = params.bool("assume_commutes", false)?;
    params.finish()?;
    Ok(PipelineStage { op, ordinal: 0, keep_position, assume_commutes, line: node.line })
}

/// Assigns ordinals: operators count up from 0, cache points count down from [`MAX_OPS`], so that
/// adding a cache point changes no draws.
pub(crate) fn number(stages: &mut [PipelineStage]) -> Result<(), PipelineError> {
    let (mut next, mut next_point) = (0_u32, MAX_OPS as u32);
    let mut after_point = false;
    for stage in stages {
        let is_point = stage.op.cache_point().is_some();
        if is_point && after_point {
            let message = "`autocache` comes after `autocache`; keep one of them";
            return Err(PipelineError::at_line(stage.line, message));
        }
        after_point = is_point;
        if is_point {
            stage.ordinal = next_point;
            next_point -= 1;
        } else {
            stage.ordinal = next;
            next += 1;
        }
    }
    Ok(())
}

pub(crate) fn read_canonical_stages(
    node: &SyntaxNode,
    registry: &OperatorRegistry,
) -> Result<Vec<PipelineStage>, PipelineError> {
    op_nodes(node)?.iter().map(|node| read_canonical_stage(node, registry)).collect()
}

fn read_canonical_stage(
    node: &SyntaxNode,
    registry: &OperatorRegistry,
) -> Result<PipelineStage, PipelineError> {
    let mut table = MappingReader::new("an op", node)?;
    let name = table.require("op")?;
    let name = table.text("op", name)?;
    let version = table.require("version")?;
    let version = table.whole("version", version, 0..=u32::MAX)?;
    let ordinal = table.require("ordinal")?;
    let ordinal = table.whole("ordinal", ordinal, 0..=MAX_OPS as u32)?;
    let keep_position = table.bool("keep_position", false)?;
    let mut params = MappingReader::new(format!("`{}`", cut(&name)), table.require("params")?)?;
    table.finish()?;
    let op = if name.contains('.') {
        let entry = registry.get(&name);
        BoxedOperator::new(ExternalOperator::parse_canonical(&name, version, entry, &mut params)?)
    } else {
        let entry = registry.get(&name).ok_or_else(|| unknown(&name, node, registry))?;
        entry.parse(&mut params)?
    };
    params.finish()?;
    if let Some(AssetReference::Path(path)) = op.asset() {
        return Err(node.error(format!(
            "op `{name}` names the file {} and not its content, which workers need; register the \
             job with a release that stores it",
            shown(path)
        )));
    }
    let (_, known) = op.identity();
    if version != known {
        return Err(node.error(format!(
            "op `{name}` is needed in version {version}, this build has {known}; use the release \
             the job was registered with"
        )));
    }
    Ok(PipelineStage { op, ordinal, keep_position, assume_commutes: false, line: None })
}

fn cut(name: &str) -> &str {
    name.char_indices().nth(32).map_or(name, |(end, _)| &name[..end])
}

fn unknown(name: &str, node: &SyntaxNode, registry: &OperatorRegistry) -> PipelineError {
    let known: Vec<&str> = registry.names().collect();
    let advice = match nearest(name, &known) {
        None if name.contains('.') => "its dot says that it is an operator of a user: run the \
             `gristmill` and the workers that were built with it (docs/operators.md)"
            .into(),
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("docs/operators.md has the {} there are", known.len()),
    };
    node.error(format!("op {} is not known; {advice}", shown(name)))
}

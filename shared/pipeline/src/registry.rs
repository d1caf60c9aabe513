//! The set of operators that a program has, by name.

use crate::{
    BoxedOperator, Cardinality, MappingReader, OperatorDeclaration, OperatorDefinition,
    OperatorEffect, OperatorScope, Parameter, PipelineError,
};
use std::fmt;

/// Maximum length of an operator's name, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// One operator of a [`OperatorRegistry`].
#[derive(Clone, Copy)]
pub struct RegisteredOperator {
    pub declaration: &'static OperatorDeclaration,
    pub parameters: &'static [Parameter],
    parse: fn(&mut MappingReader<'_>) -> Result<BoxedOperator, PipelineError>,
}

impl RegisteredOperator {
    fn from_definition<T: OperatorDefinition>() -> Self {
        RegisteredOperator {
            declaration: const { &T::DECLARATION },
            parameters: T::PARAMETERS,
            parse: |params| T::parse(params).map(BoxedOperator::new),
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

impl fmt::Debug for RegisteredOperator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Entry").field("declaration", self.declaration).finish_non_exhaustive()
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

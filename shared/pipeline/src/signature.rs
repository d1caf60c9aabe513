//! Operators of users: what a program that was built with one knows of it.
//!
//! An operator of a user has a name with a dot, `my_crate.my_op`. Reading a pipeline file takes its
//! [`Signature`], from which defaults are checked and schemas follow. The canonical form then holds
//! what it declares and what it makes, so that parts of the system that were not built with it can plan
//! a job; only workers must have it.

use crate::{Cardinality, Declaration, Effect, FieldSchema, Randomness, Scope};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest name of an operator, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// What an operator of a user declares, and how it judges its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    pub declaration: &'static Declaration,
    /// The schema of what it makes of a field of this schema with these parameters, a JSON object; or
    /// what is wrong with either, in one line.
    pub infer: fn(&Value, &FieldSchema) -> Result<FieldSchema, String>,
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        self.declaration == other.declaration
    }
}

impl Declaration {
    /// What most operators of users declare: deterministic, one element in and one out, movable, and of
    /// unknown effect, so that others on its field stay on their side of it. Name the rest after it:
    /// `Declaration { randomness: Randomness::Random, ..Declaration::of_user("my_crate.my_op", 1) }`.
    pub const fn of_user(name: &'static str, version: u32) -> Declaration {
        Declaration {
            name,
            version,
            randomness: Randomness::Deterministic,
            cardinality: Cardinality::OneToOne,
            pins_position: false,
            scope: Scope::Element,
            effect: Effect::Opaque,
        }
    }
}

/// The operators of users that a program was built with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signatures {
    known: BTreeMap<&'static str, Signature>,
}

impl Signatures {
    pub fn new() -> Self {
        Self::default()
    }

    /// These and another.
    ///
    /// # Errors
    /// If its name is taken or no name, or it declares what operators of users cannot be.
    pub fn with(mut self, signature: Signature) -> Result<Self, String> {
        let Declaration { name, version, cardinality, scope, effect, .. } = *signature.declaration;
        check_name(name)?;
        let whole_elements = cardinality == Cardinality::OneToOne && scope == Scope::Element;
        if !whole_elements || effect == Effect::Select || version == 0 {
            return Err(format!(
                "operator `{name}` must make one element of one (cardinality, scope, effect) and \
                 have a version of at least 1"
            ));
        }
        match self.known.insert(name, signature) {
            None => Ok(self),
            Some(_) => Err(format!("there are two operators `{name}`; rename one")),
        }
    }

    /// The operator called `name`.
    pub fn get(&self, name: &str) -> Option<Signature> {
        self.known.get(name).copied()
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.keys().copied()
    }
}

/// Names are `crate.op`: the dot tells them from ours, now and later.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let part = |part: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        !part.is_empty() && part.bytes().all(plain)
    };
    let mut parts = name.split('.');
    let two = parts.by_ref().take(2).filter(|name| part(name)).count() == 2;
    match two && parts.next().is_none() && name.len() <= MAX_NAME_BYTES {
        true => Ok(()),
        false => Err(format!(
            "an operator of a user is called `crate.op`, lower-case letters, digits and _ on both \
             sides of one dot, not {}",
            crate::node::shown(name)
        )),
    }
}

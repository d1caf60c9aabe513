//! Decisions as pure functions: observation, state and settings in, decision and reason out.

pub mod caching;
pub mod compression;
pub mod cost;
pub mod placement;
pub mod plan;
pub mod scaling;

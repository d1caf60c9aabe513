//! What must hold, by number.
use crate::{Bundle, Consumer, epoch::EpochItem};
pub(crate) fn check_bundle_step(_before: Option<&Bundle>, _after: &Bundle) {}
pub(crate) fn check_consumer_step(_before: Option<&Consumer>, _after: &Consumer) {}
pub(crate) fn check_epoch_step(_b: &EpochItem, _a: &EpochItem, _bundles: &[Option<&Bundle>]) {}

//! Batch arithmetic, case by case.

//! Seals and closes, case by case.

//! Claims, case by case.

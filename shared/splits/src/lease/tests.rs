//! Transitions of a lease, case by case.

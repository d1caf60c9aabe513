//! Progress of a consumer, case by case.

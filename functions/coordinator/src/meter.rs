//! Metrics of each call: kind, latency, refusals, and write conflicts.

use gristmill_model::wire::{AnyCall, AnyReply};
use gristmill_ports::{FunctionMetrics, MetricValue};

/// Prints the measures of a call that has ended at `ended_ms`. The platform sends an environment one call at a time, so
/// `conflicts` are those of this call.
pub(crate) fn print(
    metrics: &FunctionMetrics,
    call: &AnyCall,
    reply: &AnyReply,
    started_ms: u64,
    ended_ms: u64,
    conflicts: u64,
) {
    let measured = [
        MetricValue::count(call.name(), 1),
        MetricValue::count("refusals", u64::from(matches!(reply, AnyReply::Refused(_)))),
        MetricValue::count("conflicts", conflicts),
        MetricValue::ms("latency_ms", ended_ms.saturating_sub(started_ms)),
    ];
    metrics.print(ended_ms, &measured, &[("job", call.job().map_or("", |job| job.as_str()))]);
}

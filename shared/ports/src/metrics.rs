//! Metrics of a function, as one line of CloudWatch's embedded metric format on standard output. The
//! platform turns the log entry into metrics; no request is sent.
//!
//! Every combination of dimension values is billed as a metric of its own, so there are two
//! dimensions with few values: the function and the namespace. A job is a property: searchable in the
//! log, absent from the bill.

use gristmill_model::Namespace;
use serde_json::{Map, Value, json};
use std::io::Write;

/// CloudWatch's namespace, not ours.
const CLOUDWATCH_NAMESPACE: &str = "gristmill";

/// One value, with its unit as CloudWatch names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricValue {
    name: &'static str,
    unit: &'static str,
    value: u64,
}

impl MetricValue {
    /// A number of things.
    pub fn count(name: &'static str, value: u64) -> Self {
        Self { name, unit: "Count", value }
    }

    /// A time in milliseconds.
    pub fn ms(name: &'static str, value: u64) -> Self {
        Self { name, unit: "Milliseconds", value }
    }
}

/// The metrics of one function. Off by default: without a collector the lines are noise.
#[derive(Debug, Clone, Default)]
pub struct FunctionMetrics(Option<Dimensions>);

#[derive(Debug, Clone)]
struct Dimensions {
    function: &'static str,
    ns: Namespace,
}

impl FunctionMetrics {
    /// Metrics of `function` in `ns`, printed if `is_on`.
    pub fn new(function: &'static str, ns: Namespace, is_on: bool) -> Self {
        Self(is_on.then_some(Dimensions { function, ns }))
    }

    /// Prints values measured at `at_ms` (Unix time). Properties appear in the log only.
    pub fn print(&self, at_ms: u64, measured: &[MetricValue], properties: &[(&str, &str)]) {
        if let Some(dimensions) = &self.0 {
            let line = format!("{}\n", dimensions.line(at_ms, measured, properties));
            // One write, so that no other line comes in between. Errors are ignored: a function without
            // standard output has no reader.
            let _ = std::io::stdout().lock().write_all(line.as_bytes());
        }
    }
}

impl Dimensions {
    fn line(&self, at_ms: u64, measured: &[MetricValue], properties: &[(&str, &str)]) -> Value {
        let definitions =
            measured.iter().map(|measure| json!({ "Name": measure.name, "Unit": measure.unit }));
        let directive = json!({
            "Namespace": CLOUDWATCH_NAMESPACE,
            "Dimensions": [["function", "namespace"]],
            "Metrics": definitions.collect::<Vec<_>>(),
        });
        let mut root = Map::new();
        root.extend(properties.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        root.extend(measured.iter().map(|measure| (measure.name.into(), measure.value.into())));
        root.insert("function".into(), self.function.into());
        root.insert("namespace".into(), self.ns.as_str().into());
        root.insert("_aws".into(), json!({ "Timestamp": at_ms, "CloudWatchMetrics": [directive] }));
        Value::Object(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(measured: &[MetricValue], properties: &[(&str, &str)]) -> Value {
        let dimensions = Dimensions { function: "worker", ns: "team-a".parse().unwrap() };
        dimensions.line(1_790_000_000_000, measured, properties)
    }

    /// The rules of AWS's "Specification: Embedded metric format".
    fn assert_is_emf(text: &str) {
        assert!(!text.contains('\n') && text.len() < 256 << 10, "one event: {text}");
        let root: Value = serde_json::from_str(text).unwrap();
        let metadata = root["_aws"].as_object().unwrap();
        assert!(metadata.keys().all(|key| key == "Timestamp" || key == "CloudWatchMetrics"));
        assert!(metadata["Timestamp"].is_u64(), "milliseconds since 1970");
        for directive in metadata["CloudWatchMetrics"].as_array().unwrap() {
            let directive = directive.as_object().unwrap();
            assert_eq!(directive.len(), 3, "no other members: {directive:?}");
            let namespace = directive["Namespace"].as_str().unwrap();
            assert!((1..=1024).contains(&namespace.len()) && !namespace.starts_with("AWS/"));
            for set in directive["Dimensions"].as_array().unwrap() {
                let set = set.as_array().unwrap();
                assert!(set.len() <= 30, "{set:?}");
                for target in set {
                    let value = root[target.as_str().unwrap()].as_str().unwrap();
                    assert!((1..=1024).contains(&value.len()) && value.is_ascii(), "{value}");
                }
            }
            let metrics = directive["Metrics"].as_array().unwrap();
            assert!(metrics.len() <= 100);
            for metric in metrics {
                let members = metric.as_object().unwrap();
                assert!(members.keys().all(|key| key == "Name" || key == "Unit"), "{metric}");
                assert!(matches!(metric["Unit"].as_str(), Some("Count" | "Milliseconds")));
                let value = &root[metric["Name"].as_str().unwrap()];
                assert!(value.is_number(), "the target is a number: {metric}");
            }
        }
    }

    #[test]
    fn a_line_is_as_the_specification_wants_it() {
        let measured = [MetricValue::count("splits", 3), MetricValue::ms("compute_ms", u64::MAX)];
        let line = printed(&measured, &[("job", "j\n1")]);
        assert_is_emf(&line.to_string());
        assert_eq!(line["splits"], 3);
        assert_eq!(
            (line["function"].as_str(), line["namespace"].as_str()),
            (Some("worker"), Some("team-a"))
        );
        assert_is_emf(&printed(&[], &[]).to_string());
    }

    #[test]
    fn a_job_is_in_the_log_and_not_in_the_bill() {
        let line = printed(&[MetricValue::count("splits", 3)], &[("job", "j1")]);
        assert_eq!(line["job"], "j1");
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Dimensions"], json!([["function", "namespace"]]));
    }

    #[test]
    fn properties_take_nobodys_place() {
        let line =
            printed(&[MetricValue::count("splits", 3)], &[("function", "x"), ("splits", "y")]);
        assert_eq!((line["function"].as_str(), line["splits"].as_u64()), (Some("worker"), Some(3)));
    }
}

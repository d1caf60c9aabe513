//! Invariants of every page: hostile text is escaped, nothing external is requested, and a long run's
//! page is no larger than a short one's.

use super::*;
use crate::{
    EpochWaits, OpSeconds, TimelineCost, TimelineDecision, TimelineEpoch, TimelineJob,
    TimelineSample, WorkerShares, attribute,
};
use base64::Engine;
use gristmill_model::{CostBreakdown, Usd, wire::CacheMode};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn named(file: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(Sha256::digest(file))
}

#[test]
fn style_and_script_are_those_of_the_policy() {
    assert_eq!(STYLE_SHA256, named(STYLE), "the style sheet changed: set STYLE_SHA256");
    assert_eq!(SCRIPT_SHA256, named(SCRIPT), "the script changed: set SCRIPT_SHA256");
}

/// A timeline with `text` in every place that takes one.
fn all_named(text: &str) -> Timeline {
    let text = || text.to_owned();
    let workers = WorkerShares {
        ops: vec![OpSeconds { name: text(), seconds: 3.0 }],
        ..WorkerShares::default()
    };
    let waits = EpochWaits { working_s: 2.0, ..EpochWaits::default() };
    Timeline {
        job: TimelineJob {
            name: text(),
            pipeline: text(),
            ops: vec![text(), text()],
            dataset: text(),
            ..TimelineJob::default()
        },
        samples: vec![TimelineSample { t_s: 9.0, workers: Some(1.0), ..TimelineSample::default() }],
        decisions: vec![TimelineDecision {
            t_s: 1.0,
            reason: text(),
            ..TimelineDecision::default()
        }],
        epochs: vec![TimelineEpoch {
            mode: CacheMode::Put { point: 0 },
            reason: text(),
            seconds: 9.0,
            stalls: Some(attribute(&waits, &workers, 9.0)),
            workers,
            ..TimelineEpoch::default()
        }],
        cost: Some(TimelineCost {
            spent: CostBreakdown { compute: Usd(1.0), ..CostBreakdown::default() },
            basis: text(),
        }),
    }
}

/// Markup of a page, without text between tags and quoted values.
fn markup(page: &str) -> String {
    let mut kept = String::new();
    let (mut inside, mut quoted) = (false, false);
    for c in page.chars() {
        match c {
            '<' if !inside => inside = true,
            '>' if inside && !quoted => inside = false,
            '"' if inside => quoted = !quoted,
            _ if !inside || quoted => continue,
            _ => {}
        }
        kept.push(c);
    }
    kept
}

proptest! {
    #[test]
    fn hostile_names_are_only_text(
        middle in r#"[<>&"'=/ !a-z\-\]\[\u{0}\u{1b}\u{202e}]{0,12}"#,
        shape in 0_usize..5,
    ) {
        let name = match shape {
            0 => format!("<q7x{middle}>"),
            1 => format!("\"'><q7x {middle}"),
            2 => format!("</script></style></title><!--<q7x{middle}"),
            3 => format!("{middle}&<q7x onload=\"{middle}\""),
            _ => format!("{{\"end\":1}}</script>{middle}<q7x"),
        };
        let page = render(&all_named(&name));
        prop_assert!(!page.contains("<q7x"), "{name}");
        // The names appear, and the structure equals that of a page with harmless names.
        prop_assert!(page.matches("&lt;q7x").count() >= 10, "{name}");
        let harmless: String = shown(&name).chars().map(|c| if c.is_ascii() { 'x' } else { c }).collect();
        prop_assert_eq!(markup(&page), markup(&render(&all_named(&harmless))), "{}", name);
    }

    #[test]
    fn odd_numbers_make_no_odd_page(
        samples in proptest::collection::vec([any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>()], 0..20),
        epochs in proptest::collection::vec([any::<f64>(), any::<f64>(), any::<f64>(), any::<f64>()], 0..4),
        seconds in proptest::option::of(any::<f64>()),
        counts in [any::<u64>(), any::<u64>()],
    ) {
        let sample = |&[t_s, time, stall, more]: &[f64; 4]| TimelineSample {
            t_s,
            batches: counts[0],
            batch_time_s: Some(time),
            stall_s: Some(stall),
            workers: Some(more),
            queue_batches: Some(more),
            target: Some(counts[1] as u32),
            ..TimelineSample::default()
        };
        let epoch = |&[start_s, seconds, waited, worked]: &[f64; 4]| {
            let workers = WorkerShares { source_s: worked, put_s: waited, ..WorkerShares::default() };
            let waits = EpochWaits { total_s: waited, fetch_s: worked, ..EpochWaits::default() };
            TimelineEpoch {
                start_s: Some(start_s),
                seconds,
                first_batch_s: Some(worked),
                batches: counts[1],
                cost_usd: Some(waited),
                stalls: Some(attribute(&waits, &workers, seconds)),
                workers,
                ..TimelineEpoch::default()
            }
        };
        let timeline = Timeline {
            samples: samples.iter().map(sample).collect(),
            epochs: epochs.iter().map(epoch).collect(),
            decisions: vec![TimelineDecision { t_s: seconds.unwrap_or(f64::NAN), batch: counts[0], workers: counts[1] as u32, ..TimelineDecision::default() }],
            cost: Some(TimelineCost {
                spent: CostBreakdown { compute: Usd(seconds.unwrap_or(f64::NAN)), ..CostBreakdown::default() },
                ..TimelineCost::default()
            }),
            ..Timeline::default()
        };
        let page = render(&timeline).replace(SCRIPT, "").replace(STYLE, "");
        prop_assert!(!page.contains("NaN"));
        prop_assert!(!page.contains("inf"));
        prop_assert!(page.len() < 1 << 20);
    }
}

#[test]
fn a_page_asks_for_nothing() {
    let page = render(&all_named("resnet50"));
    let markup = markup(&page);
    for word in ["src=", "href=", " style=", " on", "<link", "<img", "<a ", "<iframe", "<form"] {
        assert!(!markup.contains(word), "{word}");
    }
    for word in ["://", "url(", "@import", "fetch(", "XMLHttpRequest", "eval("] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn an_empty_timeline_is_a_page() {
    let page = render(&Timeline::default());
    assert!(page.contains("Nothing of this run was recorded."));
    assert!(!page.contains("<svg"));
}

#[test]
fn every_measurement_is_on_the_page() {
    let mut timeline = all_named("resnet50");
    timeline.epochs[0].skipped = 3;
    timeline.epochs[0].mode = CacheMode::Put { point: 2 };
    timeline.decisions[0].reason = "stalled: 4 workers cover 80 % of the demand".to_owned();
    let page = render(&timeline);
    for words in [
        "put at point 2",
        "stalled: 4 workers cover 80 % of the demand",
        "more workers would help: the trainer waited for them 22 % of the epoch",
        "<th>skipped</th>",
        "$1.00",
        "op resnet50",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "it measures how long a page takes")]
fn a_long_run_is_a_small_page() {
    let sample = |index: u32| {
        let odd = f64::from(index.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
        TimelineSample {
            t_s: f64::from(index) * 0.3,
            batches: index.into(),
            batch_time_s: Some(0.2 + odd),
            stall_s: Some(odd),
            step_s: Some(0.2),
            workers: Some(8.0 * odd),
            target: Some((9.0 * odd) as u32),
            outstanding: Some((10.0 * odd) as u32),
            queue_batches: Some(30.0 * odd),
        }
    };
    let mut timeline = all_named("long");
    timeline.samples = (0..100_000).map(sample).collect();
    timeline.decisions = (0..5_000)
        .map(|index: u32| TimelineDecision {
            t_s: 6.0 * f64::from(index),
            reason: "x".repeat(1_000),
            ..TimelineDecision::default()
        })
        .collect();
    let epoch = timeline.epochs[0].clone();
    timeline.epochs = (0..5_000)
        .map(|number: u32| TimelineEpoch {
            epoch: number,
            seconds: 6.0,
            mode: if number.is_multiple_of(2) {
                CacheMode::Compute
            } else {
                CacheMode::Get { point: 1 }
            },
            reason: format!("predicted {number} s"),
            ..epoch.clone()
        })
        .collect();
    let page = render(&timeline);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

//! Changes that passes make, and those that they refuse.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_pipeline::{Pipeline, passes::*};

fn pipeline(ops: &str) -> Pipeline {
    pipeline_in("exact", ops)
}

/// A pipeline with this `auto_order`.
fn pipeline_in(order: &str, ops: &str) -> Pipeline {
    let ops: String = ops.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let source = "
source:
  tfrecord: x
  features:
    image: { dtype: bytes }
    label: { dtype: i64 }
    boxes: { dtype: f32, shape: [4] }
ops:
";
    gristmill_operators::parse(&format!("auto_order: {order}{source}{ops}")).unwrap()
}

fn optimised(ops: &str) -> (Vec<&'static str>, Vec<PassNote>) {
    optimised_in("exact", ops)
}

fn optimised_in(order: &str, ops: &str) -> (Vec<&'static str>, Vec<PassNote>) {
    let OptimisedPipeline { pipeline, notes } =
        optimise(&pipeline_in(order, ops), &MeasuredBytes::new());
    let stages = pipeline.stages().iter().chain(&pipeline.deliver().stages);
    (stages.map(|stage| stage.op.name()).collect(), notes)
}

const NORMALISE: &str = "normalise: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]";

const FLIPPED: &str = "- decode: { typical_size: [375, 500] }
                       - flip
                       - resize: { size: 224 }
                       - batch: { size: 4 }";

#[test]
fn shrinking_operators_come_first_if_bytes_stay() {
    let (order, notes) = optimised(
        "- decode: { typical_size: [375, 500] }
         - solarize
         - random_crop: { size: 224 }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "random_crop", "solarize", "batch"]);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].change, PassChange::Moved { from: 2, to: 1, changes_results: false });
    assert_eq!(notes[0].reason, "it makes elements smaller (inflation factor 0.27)");
    let (order, notes) = optimised(FLIPPED);
    assert_eq!(order, ["decode", "flip", "resize", "batch"]);
    assert_eq!(notes[0].change, PassChange::Refused { across: "flip" });
    assert!(notes[0].reason.contains("`auto_order: pecan`"), "{notes:?}");
}

#[test]
fn as_in_pecan_what_makes_images_smaller_comes_first_and_is_marked() {
    let (order, notes) = optimised_in("pecan", FLIPPED);
    assert_eq!(order, ["decode", "resize", "flip", "batch"]);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].change, PassChange::Moved { from: 2, to: 1, changes_results: true });
    let reason = "it makes elements smaller (inflation factor 0.27); across `flip` the result is \
                  another";
    assert_eq!(notes[0].reason, reason);
    // Other results have another fingerprint.
    let fingerprint = |order: &str| {
        let pipeline = optimise(&pipeline_in(order, FLIPPED), &MeasuredBytes::new()).pipeline;
        pipeline.fingerprint(&gristmill_model::Fingerprint([7; 32]), "x")
    };
    assert_ne!(fingerprint("pecan"), fingerprint("exact"));
    assert_eq!(fingerprint("false"), fingerprint("exact"));
}

#[test]
fn a_move_that_changes_results_is_marked_even_if_the_place_stays() {
    // The second crop stays at its place if the flip moves behind it, or is marked all the same.
    let (order, notes) = optimised_in(
        "pecan",
        "- decode: { typical_size: 1000 }
         - flip
         - center_crop: { size: 300 }
         - crop: { height: 200, width: 200 }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "center_crop", "crop", "flip", "batch"]);
    let changes =
        |note: &&PassNote| matches!(note.change, PassChange::Moved { changes_results: true, .. });
    let ops: Vec<_> = notes.iter().filter(changes).map(|note| note.op).collect();
    assert_eq!(ops, ["center_crop", "crop"], "{notes:?}");
}

#[test]
fn only_three_values_of_auto_order_are_known() {
    for (value, shown) in [("true", "true"), ("'false'", "`false`"), ("fast", "`fast`"), ("1", "1")]
    {
        let text = format!("name: x\nauto_order: {value}\nsource: {{ tfrecord: x }}\nops: [batch]");
        let error = gristmill_operators::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with("line 2: `auto_order` must be `exact`"), "{error}");
        assert!(error.contains("`pecan`") && error.contains("`false`"), "{error}");
        assert!(error.ends_with(&format!("not {shown}")), "{error}");
    }
}

#[test]
fn fields_that_follow_an_image_do_not_commute_with_its_moves() {
    for order in ["exact", "pecan"] {
        let ops = "- decode
                   - resize: { size: 8 }
                   - scale: { field: box, factor: 2 }
                   - flip: { boxes: [box] }
                   - padded_batch: { size: 4 }";
        let text = format!(
            "auto_order: {order}\nsource: {{ tfrecord: x, features: {{ image: {{ dtype: bytes }}, \
             box: {{ dtype: f32, shape: [-1, 4] }} }} }}\nops:\n{ops}\n"
        );
        let text = text.replace("                   -", "  -").replace("\n- ", "\n  - ");
        let pipeline = gristmill_operators::parse(&text).unwrap();
        let measured = MeasuredBytes::from([(2, (1.0, 9.0))]);
        assert_eq!(
            optimise(&pipeline, &measured).pipeline.canonical_json(),
            pipeline.canonical_json()
        );
    }
}

#[test]
fn nothing_moves_on_a_guess() {
    let ops = "- decode\n- flip\n- resize: { size: 224 }\n- batch: { size: 4 }";
    assert_eq!(optimised_in("pecan", ops).0, ["decode", "flip", "resize", "batch"]);
    // A measurement allows the move.
    let measured = MeasuredBytes::from([(2, (1e6, 150_528.0))]);
    let order = optimise(&pipeline_in("pecan", ops), &measured).pipeline;
    assert_eq!(order.stages()[1].op.name(), "resize");
}

#[test]
fn a_factor_of_1_04_moves_nothing() {
    let ops = "- decode\n- flip\n- resize: { size: 224 }\n- batch: { size: 4 }";
    for factor in [0.96, 1.0, 1.04] {
        let measured = MeasuredBytes::from([(2, (100.0, 100.0 * factor))]);
        let notes = optimise(&pipeline_in("pecan", ops), &measured).notes;
        assert!(notes.is_empty(), "{factor}");
    }
}

#[test]
fn nothing_crosses_what_keeps_its_position() {
    for keep in ["flip: { keep_position: true }", "flip"] {
        let own = if keep == "flip" { ", keep_position: true" } else { "" };
        let order = optimised_in(
            "pecan",
            &format!(
                "- decode: {{ typical_size: 500 }}\n- {keep}\n- resize: {{ size: 224{own} }}\n- batch: {{ size: 4 }}"
            ),
        );
        assert_eq!(order.0, ["decode", "flip", "resize", "batch"]);
    }
}

#[test]
fn the_author_can_forbid_it_all() {
    let text = "
auto_order: false
source: { tfrecord: x, features: { image: { dtype: bytes } } }
ops: [{ decode: { typical_size: 500 } }, flip, { resize: { size: 224 } }, { batch: { size: 4 } }]
";
    let pipeline = gristmill_operators::parse(text).unwrap();
    assert_eq!(optimise(&pipeline, &MeasuredBytes::new()).pipeline, pipeline);
}

#[test]
fn enlarging_operators_come_late() {
    let (order, _) = optimised(
        "- decode
         - resize: { size: 224 }
         - normalise: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] }
         - flip
         - batch: { size: 4 }",
    );
    // So late that it runs in the fetcher.
    assert_eq!(order, ["decode", "resize", "flip", "batch", "normalise"]);
}

#[test]
fn widening_at_the_end_is_left_to_the_fetcher() {
    let text = format!(
        "- decode\n- resize: {{ size: 64 }}\n- {NORMALISE} }}\n- layout: {{ to: nchw }}\n\
         - cast: {{ dtype: f16 }}\n- one_hot: {{ field: label, classes: 9 }}\n- batch: {{ size: 4 }}"
    );
    let before = pipeline(&text);
    let OptimisedPipeline { pipeline: after, notes } = optimise(&before, &MeasuredBytes::new());
    let names = |stages: &[gristmill_pipeline::PipelineStage]| -> Vec<_> {
        stages.iter().map(|stage| stage.op.name()).collect()
    };
    assert_eq!(names(after.stages()), ["decode", "resize", "one_hot", "batch"]);
    assert_eq!(names(&after.deliver().stages), ["normalise", "layout", "cast"]);
    assert_eq!(after.delivered_schema(), before.output_schema());
    assert_eq!(after.output_schema().field("image").unwrap().to_string(), "u8 [64, 64, 3]");
    assert_eq!(notes.last().unwrap().change, PassChange::ToFetcher { from: 4 });
    // The canonical form keeps this.
    let read = gristmill_operators::from_canonical(&after.canonical_json()).unwrap();
    assert_eq!(read.canonical_json(), after.canonical_json());
    assert_eq!(read.finishing_schemas(), after.finishing_schemas());
    // A second run changes nothing.
    assert_eq!(optimise(&after, &MeasuredBytes::new()).pipeline, after);
}

#[test]
fn operators_that_save_nothing_or_may_not_move_stay_in_workers() {
    let resize = "- decode\n- resize: { size: 64 }\n";
    for ops in [
        // Transposing saves no bytes.
        "- layout: { to: nchw }\n- batch: { size: 4 }".to_owned(),
        format!("- {NORMALISE}, keep_position: true }}\n- batch: {{ size: 4 }}"),
        // A later operator needs the output.
        format!("- {NORMALISE} }}\n- random_erasing: {{ p: 1 }}\n- batch: {{ size: 4 }}"),
        format!("- {NORMALISE} }}\n- duplicate: {{ copies: 2 }}\n- batch: {{ size: 4 }}"),
        // Operators do not move across a cache point.
        format!("- {NORMALISE} }}\n- autocache\n- batch: {{ size: 4 }}"),
        format!("- {NORMALISE} }}\n- drop: {{ fields: [image] }}\n- batch: {{ size: 4 }}"),
    ] {
        let before = pipeline(&format!("{resize}{ops}"));
        let after = optimise(&before, &MeasuredBytes::new()).pipeline;
        assert!(after.deliver().stages.is_empty(), "{ops}");
        assert_eq!(after.delivered_schema(), after.output_schema());
        assert!(!after.canonical_json().contains("\"deliver\":{\"normalise\":null,"), "{ops}");
    }
}

#[test]
fn a_dtype_that_others_need_is_not_taken_away() {
    // Resizing works on u8, so the two operators cannot swap.
    let (order, notes) = optimised_in(
        "pecan",
        "- decode: { typical_size: 64 }
         - resize: { size: 128 }
         - normalise: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] }
         - cast: { dtype: bf16 }
         - flip
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "flip", "resize", "batch", "normalise", "cast"]);
    assert!(notes.iter().all(|note| ["auto_order", "to_fetcher"].contains(&note.pass)));
}

#[test]
fn values_are_not_rescaled_behind_a_threshold() {
    let ops = "- decode
         - center_crop: { size: 32 }
         - scale
         - solarize: { threshold: 0.5, p: 1 }
         - batch: { size: 4 }";
    let (order, notes) = optimised(ops);
    assert_eq!(order, ["decode", "center_crop", "scale", "solarize", "batch"]);
    assert!(notes.iter().any(|note| note.reason.contains("`solarize` then `scale`")), "{notes:?}");
}

#[test]
fn a_crop_is_not_moved_before_a_resize() {
    let (order, notes) = optimised(
        "- decode: { typical_size: 100 }
         - resize: { size: 256 }
         - random_resized_crop: { size: 64 }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "resize", "random_resized_crop", "batch"]);
    assert!(notes.iter().any(|note| note.reason.contains("assume_commutes")), "{notes:?}");
}

#[test]
fn a_filter_comes_before_work_it_saves() {
    let (order, notes) = optimised(
        "- decode
         - resize: { size: 64 }
         - filter: { field: label, max: 9 }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["filter", "decode", "resize", "batch"]);
    assert_eq!(notes[0].reason, "what it leaves out needs no work");
}

#[test]
fn unused_outputs_are_removed() {
    let (order, notes) = optimised(
        "- decode
         - resize: { size: 64 }
         - cast: { dtype: u8 }
         - flip: { p: 0 }
         - copy: { into: second }
         - length: { field: boxes, into: corners }
         - drop: { fields: [second] }
         - duplicate: { copies: 1 }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "resize", "length", "batch"]);
    assert_eq!(notes.iter().filter(|note| note.change == PassChange::Removed).count(), 5);
}

#[test]
fn draws_stay_with_their_operator() {
    let text =
        "- decode: { typical_size: 500 }\n- flip\n- resize: { size: 64 }\n- batch: { size: 4 }";
    let ordered = optimise(&pipeline_in("pecan", text), &MeasuredBytes::new()).pipeline;
    let flip = ordered.stages().iter().find(|stage| stage.op.name() == "flip").unwrap();
    assert_eq!(flip.ordinal, 1);
    let frozen = gristmill_operators::from_canonical(&ordered.canonical_json()).unwrap();
    assert_eq!(frozen.canonical_json(), ordered.canonical_json());
}

#[test]
fn nothing_crosses_a_place_to_cache() {
    let size = "decode: { typical_size: [375, 500] }";
    let (order, notes) = optimised_in(
        "pecan",
        &format!(
            "- {size}\n- vertical_flip: {{ p: 1 }}\n- autocache: {{ reuse_random: true }}\n- resize: {{ size: 224 }}\n- batch: {{ size: 4 }}"
        ),
    );
    assert_eq!(order, ["decode", "vertical_flip", "autocache", "resize", "batch"]);
    assert!(notes.is_empty(), "{notes:?}");
    // A filter moves up to the cache point, and an inflating operator down to it.
    let (order, _) = optimised(&format!(
        "- {size}\n- resize: {{ size: 8 }}\n- autocache\n- flip\n- filter: {{ field: label, min: 1 }}\n- batch: {{ size: 4 }}"
    ));
    assert_eq!(order, ["decode", "resize", "autocache", "filter", "flip", "batch"]);
    let (order, _) = optimised(&format!(
        "- {size}\n- resize: {{ size: 8 }}\n- normalise: {{ mean: [0, 0, 0], std: [1, 1, 1] }}\n- pad: {{ padding: 1 }}\n- autocache\n- layout: {{ to: chw }}\n- batch: {{ size: 4 }}\n- autocache"
    ));
    let points: Vec<usize> = (0..order.len()).filter(|i| order[*i] == "autocache").collect();
    assert_eq!(points, [4, 7], "{order:?}");
    // Operators on the dataset come first, even before a cache point.
    let (order, _) = optimised(&format!(
        "- {size}\n- resize: {{ size: 8 }}\n- take: {{ count: 4 }}\n- autocache\n- batch: {{ size: 4 }}"
    ));
    assert_eq!(order, ["take", "decode", "resize", "autocache", "batch"]);
}

#[test]
fn dead_operators_go_and_places_to_cache_stay() {
    let (order, notes) = optimised(
        "- decode
         - autocache
         - flip: { p: 0 }
         - autocache: { reuse_random: true }
         - drop: { fields: [label] }
         - resize: { size: 8 }
         - autocache: { reuse_random: true }
         - batch: { size: 4 }",
    );
    let expected = ["decode", "autocache", "autocache", "drop", "resize", "autocache", "batch"];
    assert_eq!(order, expected);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let (order, _) = optimised(
        "- decode
         - resize: { size: 8 }
         - copy: { field: image, into: seen }
         - copy: { field: image, into: unseen }
         - autocache
         - drop: { fields: [unseen] }
         - batch: { size: 4 }",
    );
    assert_eq!(order, ["decode", "resize", "copy", "autocache", "batch"]);
}

#[test]
fn fields_that_are_moved_together_stay_together() {
    let order = |ops: &str| optimised_in("pecan", &format!("{ops}\n- batch: {{ size: 4 }}")).0;
    let decoded = "- decode: { typical_size: [375, 500] }
                   - copy: { into: other }";
    // Operators that share all their images commute as for one image.
    let flip = "- flip: { fields: [image, other] }";
    let resize = "- resize: { size: 224, fields: [image, other] }";
    let both = order(&format!("{decoded}\n{flip}\n{resize}"));
    assert_eq!(both, ["decode", "copy", "resize", "flip", "batch"]);
    // A flip of one image does not commute with an operator that moves both.
    let apart = order(&format!("{decoded}\n- flip\n{resize}"));
    assert_eq!(apart, ["decode", "copy", "flip", "resize", "batch"]);
    let mask = order(&format!(
        "{decoded}\n- flip: {{ masks: [other] }}\n- resize: {{ size: 224, masks: [other] }}"
    ));
    assert_eq!(mask, ["decode", "copy", "flip", "resize", "batch"]);
    // If one field is used, the operator must run on all; if none is used, it is removed.
    let one = order(&format!("{decoded}\n{resize}\n- drop: {{ fields: [image] }}"));
    assert_eq!(one, ["decode", "copy", "resize", "drop", "batch"]);
    let none = order(&format!("{decoded}\n{resize}\n- drop: {{ fields: [image, other] }}"));
    assert_eq!(none, ["drop", "batch"]);
}

#[test]
fn measured_sizes_count_where_the_author_allows_it_and_schemas_do_not_tell() {
    let ops = "- decode\n- solarize\n- random_crop: { size: 224 }\n- batch: { size: 4 }";
    let known = "- decode\n- resize: { size: 300 }\n- solarize\n- random_crop: { size: 224 }\n- batch: { size: 4 }";
    let order = |order: &str, ops: &str, ordinal: u32, factor: f64| -> Vec<String> {
        let measured = MeasuredBytes::from([(ordinal, (100.0, 100.0 * factor))]);
        let ordered = optimise(&pipeline_in(order, ops), &measured).pipeline;
        ordered.operator_names().into_iter().map(str::to_owned).collect()
    };
    assert_eq!(order("exact", ops, 2, 0.2)[1..3], ["solarize", "random_crop"]);
    assert_eq!(order("pecan", ops, 2, 0.2)[1..3], ["random_crop", "solarize"]);
    assert_eq!(order("pecan", ops, 2, 1.0)[1..3], ["solarize", "random_crop"]);
    assert_eq!(order("pecan", known, 3, 9.0)[2..4], ["random_crop", "solarize"]);
    let needs = |order: &str, ops: &str| needs_sizes(&pipeline_in(order, ops));
    assert!(needs("pecan", ops) && !needs("exact", ops) && !needs("pecan", known));
}

#[test]
fn sizes_are_measured_if_any_could_change_the_order() {
    const OPS: [&str; 5] = [
        "flip",
        "resize: { size: 64 }",
        "random_crop: { size: 32 }",
        "gaussian_blur: { kernel_size: 3 }",
        "pad: { padding: 3 }",
    ];
    let mut seen = [0, 0];
    for number in (0..3_125_usize).step_by(3) {
        let places: Vec<usize> = (0..5).map(|i| number / 5_usize.pow(i) % 5).collect();
        let ops: String = places.iter().map(|i| format!("- {}\n", OPS[*i])).collect();
        let end = "- resize: { size: 8, keep_position: true }\n- batch: { size: 4 }";
        let text = format!("- decode\n{ops}{end}");
        let pipeline = pipeline_in("pecan", &text);
        let order = |sizes: usize| {
            let measured = (0..6).map(|i| (i, (4.0, [2.0, 4.0, 8.0][sizes / 3_usize.pow(i) % 3])));
            let ordered = optimise(&pipeline, &measured.collect()).pipeline;
            let stages = ordered.stages().iter().chain(&ordered.deliver().stages);
            stages.map(|stage| stage.ordinal).collect::<Vec<_>>()
        };
        let needs = needs_sizes(&pipeline);
        if !needs {
            let declared = optimise(&pipeline, &MeasuredBytes::new()).pipeline;
            let declared: Vec<u32> = declared.stages().iter().map(|stage| stage.ordinal).collect();
            // 16 of the 729 combinations, others for each pipeline.
            for sizes in (0..16).map(|i| (number * 16 + i) * 31 % 729) {
                assert_eq!(order(sizes), declared, "{text}");
            }
        }
        seen[usize::from(needs)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

//! Passes change no byte by default. Operators come from the registry with parameters
//! drawn at random, bounds included, so that a new operator is tested with the others.

use super::*;
use crate::BatchFinisher;
use bytes::BytesMut;
use gristmill_kernel::{DrawKey, OperatorDraws};
use gristmill_pipeline::{
    DefaultValue, ExactEffect, Parameter, ParameterKind, RegisteredOperator,
    passes::{AutoOrder, MeasuredBytes, PassChange, PassNote, optimise},
};
use std::collections::BTreeSet;

/// Fields of elements, the image as often as all others.
const FIELDS: [&str; 6] = ["image", "image", "image", "mask", "bbox", "cls"];
/// Random pipelines that the test compares, unless the variable says more.
const PIPELINES: u32 = 300;
const MORE: &str = "GRISTMILL_RANDOM_PIPELINES";

fn dice(round: u32) -> OperatorDraws {
    let record = RecordKey { file: 7, record: round };
    DrawKey { seed: 11, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 }.draw()
}

fn one_of<T: Copy>(dice: &mut OperatorDraws, choices: &[T]) -> T {
    choices[dice.up_to(choices.len() as u32 - 1) as usize]
}

/// A value of a parameter; none if it needs one of a special form.
fn value(dice: &mut OperatorDraws, kind: &ParameterKind) -> Option<String> {
    Some(match kind {
        ParameterKind::Bool => one_of(dice, &["true", "false"]).into(),
        ParameterKind::Whole { min, max } => {
            let most = (*max).min(one_of(dice, &[9, 40])) as u32;
            one_of(dice, &[*min as u32, most, dice.clone().up_to(most)])
                .max(*min as u32)
                .to_string()
        }
        ParameterKind::Number { min, max } => {
            let [low, high] = [min.max(-1e3), max.min(1e3)];
            let between = [dice.between(low, high), dice.between(low.max(-1.0), high.min(1.0))];
            let choices = [low, high, between[0], between[1], 1_f64.clamp(low, high)];
            format!("{:?}", one_of(dice, &choices))
        }
        ParameterKind::Size { .. } => format!("[{}, {}]", 1 + dice.up_to(44), 1 + dice.up_to(34)),
        ParameterKind::Choice(names) => one_of(dice, names).into(),
        ParameterKind::List(
            item @ (ParameterKind::Number { .. } | ParameterKind::Whole { .. }),
        ) => {
            let mut both = [value(dice, item)?, value(dice, item)?];
            both.sort_by(|a, b| f64::total_cmp(&a.parse().unwrap(), &b.parse().unwrap()));
            format!("[{}, {}]", both[0], both[1])
        }
        _ => return None,
    })
}

/// The parameter as a pipeline file has it, if it is given. `fields` are those to work on.
fn given(dice: &mut OperatorDraws, parameter: &Parameter, fields: &[&str]) -> Option<String> {
    if parameter.default != DefaultValue::Required && dice.up_to(2) == 0 {
        return None;
    }
    let value = match parameter.name {
        "mean" | "std" => one_of(dice, &["[0.4, 0.5, 0.6]", "0.5", "[1e-3, 1.0, 3.0]"]).into(),
        "into" => format!("made{}", dice.up_to(9)),
        "mask_fill" => "255".into(),
        "field" => one_of(dice, fields).into(),
        "box_format" | "normalised_boxes" | "min_area" | "min_size" | "min_visibility" => {
            return None;
        }
        _ => value(dice, &parameter.kind)?,
    };
    Some(format!("{}: {value}", parameter.name))
}

/// The operator with random parameters, as a pipeline file has it. It may not be a valid one.
fn drawn(dice: &mut OperatorDraws, entry: &RegisteredOperator, fields: &[&str]) -> String {
    let moves = entry.parameters.iter().any(|parameter| parameter.name == "masks");
    let own = if moves { &["image"] } else { fields };
    let all = entry.parameters.iter();
    let mut given: Vec<String> = all.filter_map(|p| given(dice, p, own)).collect();
    if moves && fields.len() > 1 {
        let boxes = "boxes: [bbox], labels: [cls], min_area: 2";
        let both = format!("masks: [mask], {boxes}");
        given.push(one_of(dice, &["masks: []", "masks: [mask]", boxes, &both]).into());
    }
    format!("  - {}: {{ {} }}\n", entry.declaration.name, given.join(", "))
}

/// Operators on elements, but for those that need other fields or take time.
fn operators() -> Vec<RegisteredOperator> {
    let but = ["autocache", "decode", "flat_map", "sleep", "tokenise"];
    let entries = gristmill_operators::registry().entries().iter().copied();
    let fit = entries.filter(|RegisteredOperator { declaration, .. }| {
        let name = declaration.name;
        let pinned = declaration.pins_position && name != "duplicate";
        !pinned && !but.contains(&name) && !name.starts_with("parse_")
    });
    fit.collect()
}

fn run(pipeline: &Pipeline, records: &[Vec<u8>]) -> Vec<Bytes> {
    let mut bench = Bench::new(RESNET, records).policy(ErrorPolicy::Skip);
    bench.program = CompiledPipeline::compile(pipeline).unwrap();
    let batches = frames(&bench.all());
    let Some(mut finisher) = BatchFinisher::compile(pipeline).unwrap() else {
        return batches.iter().map(|frame| frame.bytes().clone()).collect();
    };
    let mut finish = |frame: &ChunkFrame| {
        finisher.finish(frame, &ChunkLimits::default(), BytesMut::with_capacity).unwrap().freeze()
    };
    batches.iter().map(&mut finish).collect()
}

/// Floats in the order of an image: ordinary ones, those at the ends of their range, and none.
fn extreme_floats(dice: &mut OperatorDraws, count: usize) -> Vec<f32> {
    let odd = [
        0.0,
        -0.0,
        1.0,
        0.5,
        255.0,
        127.5,
        1e-45,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7fc0_1234),
        f32::from_bits(0xffc5_4321),
        65_519.9,
        3e-8,
    ];
    let mut one = || match dice.up_to(3) {
        0 => one_of(dice, &odd),
        1 => dice.between(0.0, 1.0) as f32,
        _ => dice.between(-20.0, 300.0) as f32,
    };
    (0..count).map(|_| one()).collect()
}

/// A pipeline of these operators on an image of f32, after a change of its values, and the places
/// of the image in it: height, width, channels.
fn float_pipeline(
    dice: &mut OperatorDraws,
    entries: &[RegisteredOperator],
) -> Option<(Pipeline, [usize; 3])> {
    let before = one_of(
        dice,
        &[
            "cast: { dtype: u8 }",
            "clip: { min: 0, max: 1 }",
            "cast: { dtype: f16 }",
            "cast: { dtype: bf16 }",
            "clip: { min: -1e9 }",
        ],
    );
    let size = [1 + dice.up_to(22) as usize, 1 + dice.up_to(40) as usize, one_of(dice, &[1, 3])];
    let ops: String = entries.iter().map(|entry| drawn(dice, entry, &["image"])).collect();
    let yaml = format!(
        "source: {{ tfrecord: x, features: {{ image: {{ dtype: f32, shape: {size:?} }} }} }}\n\
         ops:\n  - {before}\n{ops}  - batch: {{ size: 2 }}\n"
    );
    gristmill_operators::parse(&yaml).ok().map(|pipeline| (pipeline, size))
}

fn exact_effect(pipeline: &Pipeline, i: usize) -> ExactEffect {
    let input = pipeline.schemas()[i].field("image").unwrap();
    pipeline.stages()[i].op.exact_effect(input)
}

#[test]
fn pairs_that_may_swap_give_the_same_bytes_in_either_order() {
    let mut entries = operators();
    entries.retain(|entry| {
        (0..100)
            .filter_map(|round| float_pipeline(&mut dice(round), &[*entry]))
            .any(|(pipeline, _)| exact_effect(&pipeline, 1) != ExactEffect::Unknown)
    });
    let names = entries.iter().map(|entry| entry.declaration.name).collect::<BTreeSet<_>>();
    let mut seen = BTreeSet::new();
    for round in 0..6_000 {
        let dice = &mut dice(round);
        let both = [one_of(dice, &entries), one_of(dice, &entries)];
        let Some((pipeline, size)) = float_pipeline(dice, &both) else { continue };
        if !exact_effect(&pipeline, 1).commutes_with(exact_effect(&pipeline, 2)) {
            continue;
        }
        let written = pipeline.canonical_json();
        let mut swapped: serde_json::Value = serde_json::from_str(&written).unwrap();
        swapped["ops"].as_array_mut().unwrap().swap(1, 2);
        let Ok(swapped) = gristmill_operators::from_canonical(&swapped.to_string()) else {
            continue;
        };
        let count = size.iter().product();
        let record = || example([("image", floats(&extreme_floats(dice, count)))]);
        let records: Vec<Vec<u8>> = std::iter::repeat_with(record).take(3).collect();
        assert!(run(&pipeline, &records) == run(&swapped, &records), "round {round}: {written}");
        seen.extend(both.iter().map(|entry| entry.declaration.name));
    }
    assert!(names.len() >= 13, "{names:?}");
    assert_eq!(seen, names);
}

#[test]
fn borders_and_whole_image_operators_are_not_exact() {
    let effect = |shape: &str, op: &str| {
        let yaml = format!(
            "source: {{ tfrecord: x, features: {{ image: {{ dtype: f32, shape: {shape} }} }} }}\n\
             ops: [{{ {op} }}, {{ padded_batch: {{ size: 1 }} }}]\n"
        );
        exact_effect(&gristmill_operators::parse(&yaml).unwrap(), 0)
    };
    for (shape, op, expected) in [
        ("[9, 9, 3]", "center_crop: { size: 9 }", ExactEffect::Cut),
        ("[9, 8, 3]", "center_crop: { size: 9 }", ExactEffect::Unknown),
        ("[9, 9, 3]", "random_crop: { size: 5 }", ExactEffect::Cut),
        ("[9, 9, 3]", "random_crop: { size: 5, padding: [0, 0, 0, 1] }", ExactEffect::Unknown),
        ("[9, 9, 3]", "random_crop: { size: 5, pad_if_needed: true }", ExactEffect::Unknown),
        ("[9, 9, 3]", "color_jitter: { brightness: 0.5, hue: 0.1 }", ExactEffect::Unknown),
        ("[9, 9, 3]", "color_jitter: { contrast: 0.1 }", ExactEffect::Unknown),
        ("[9, 9, 3]", "standardise: {}", ExactEffect::Unknown),
    ] {
        assert_eq!(effect(shape, op), expected, "{op}");
    }
}

/// A pipeline of random operators on elements with an image, a mask, boxes and labels.
fn random_pipeline(dice: &mut OperatorDraws, entries: &[RegisteredOperator]) -> Option<String> {
    let size = one_of(dice, &["", ": { typical_size: 300 }", ": { typical_size: 8 }"]);
    let mut ops = format!("  - decode{size}\n  - decode: {{ field: mask, mode: indices }}\n");
    let all = "masks: [mask], boxes: [bbox], labels: [cls]";
    if dice.up_to(1) == 0 {
        ops += &format!("  - resize: {{ size: [31, 27], {all} }}\n");
    }
    for _ in 0..2 + dice.up_to(3) {
        let entry = one_of(dice, entries);
        ops += &drawn(dice, &entry, &FIELDS);
    }
    let end = "  - padded_batch: { size: 3 }\n";
    let sized = format!("  - center_crop: {{ size: [19, 23], {all} }}\n{end}");
    let resized = format!("  - resize: {{ size: [19, 23], {all} }}\n{end}");
    let ends = [end, &sized, &resized];
    ends.iter().map(|end| together::source(&format!("{ops}{end}"))).find(|yaml| {
        gristmill_operators::parse(yaml)
            .is_ok_and(|pipeline| CompiledPipeline::compile(&pipeline).is_ok())
    })
}

fn ordered(order: &str, yaml: &str) -> (Pipeline, Vec<PassNote>) {
    let pipeline = gristmill_operators::parse(&format!("{order}{yaml}")).unwrap();
    let optimised = optimise(&pipeline, &MeasuredBytes::new());
    (optimised.pipeline, optimised.notes)
}

#[test]
fn random_pipelines_give_the_bytes_of_the_order_that_was_written() {
    let wanted = std::env::var(MORE).map_or(PIPELINES, |number| number.parse().unwrap());
    let (entries, records) = (operators(), together::distinct_records(5, false));
    let (mut compared, mut moved, mut marked) = (0, 0, 0);
    for round in 0.. {
        if compared == wanted {
            break;
        }
        let Some(yaml) = random_pipeline(&mut dice(1_000_000 + round), &entries) else { continue };
        let (written, notes) = ordered("auto_order: false\n", &yaml);
        assert!(!notes.iter().any(|note| matches!(note.change, PassChange::Moved { .. })));
        let expected = run(&written, &records);
        let (exact, notes) = ordered("", &yaml);
        assert_eq!(exact.auto_order(), AutoOrder::Exact);
        assert!(run(&exact, &records) == expected, "round {round}: {yaml}{notes:#?}");
        let bytes = |pipeline: &Pipeline| pipeline.narrow_bytes_per_record(100);
        assert_eq!(bytes(&exact), bytes(&written), "round {round}: {yaml}");
        let is_moved = |note: &PassNote| {
            !matches!(note.change, PassChange::Refused { .. } | PassChange::Removed)
        };
        moved += u32::from(notes.iter().any(is_moved));
        let changes = |note: &PassNote| {
            matches!(note.change, PassChange::Moved { changes_results: true, .. })
        };
        assert!(!notes.iter().any(changes));
        let (pecan, notes) = ordered("auto_order: pecan\n", &yaml);
        match notes.iter().any(changes) {
            true => marked += 1,
            // Moves without the mark change nothing.
            false => assert!(run(&pecan, &records) == expected, "round {round}: {yaml}{notes:#?}"),
        }
        compared += 1;
    }
    assert!(moved > wanted / 10 && marked > wanted / 20, "{moved} moved, {marked} marked");
}

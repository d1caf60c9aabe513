//! Sequences of numbers that are padded or cut to one length.

use super::*;

const SOURCE: &str = "
source:
  tfrecord: x
  features:
    any: { dtype: i64, shape: [-1] }
    rows: { dtype: f32, shape: [-1, 2] }
ops:
";

/// Record i has i numbers and i rows.
fn records(n: i64) -> Vec<Vec<u8>> {
    let record = |i: i64| {
        let any: Vec<i64> = (1..=i).collect();
        let rows: Vec<f32> = (0..2 * i).map(|x| x as f32).collect();
        example([("any", ints(&any)), ("rows", floats(&rows))])
    };
    (0..n).map(record).collect()
}

fn numbers(output: &SplitOutput) -> Vec<i64> {
    let frames = frames(output);
    let all = frames.iter().flat_map(|frame| values::<8>(frame, "any"));
    all.map(i64::from_le_bytes).collect()
}

#[test]
fn padding_follows_what_is_there() {
    let ops = "  - pad_sequence: { field: any, length: 3, value: -1 }
  - pad_sequence: { field: rows, length: 3, value: 0.5 }
  - batch: { size: 4 }
";
    let bench = Bench::new(&format!("{SOURCE}{ops}"), &records(4));
    let output = bench.all();
    assert_eq!(numbers(&output), [-1, -1, -1, 1, -1, -1, 1, 2, -1, 1, 2, 3]);
    let frame = &frames(&output)[0];
    assert_eq!(frame.get("rows").unwrap().shape(), [4, 3, 2]);
    let rows: Vec<f32> = values(frame, "rows").into_iter().map(f32::from_le_bytes).collect();
    assert_eq!(&rows[6..12], [0.0, 1.0, 0.5, 0.5, 0.5, 0.5]);
}

#[test]
fn longer_sequences_are_cut_or_refused() {
    let pad = |more: &str| {
        format!(
            "{SOURCE}  - pad_sequence: {{ field: any, length: 2{more} }}\n  \
             - drop: {{ fields: [rows] }}\n  - batch: {{ size: 4 }}\n"
        )
    };
    let output = Bench::new(&pad(""), &records(4)).policy(ErrorPolicy::Skip).all();
    assert_eq!(numbers(&output), [0, 0, 1, 0, 1, 2]);
    let skipped = &output.skipped[0];
    assert_eq!(skipped.op, "pad_sequence");
    assert_eq!(skipped.reason, "a sequence of 3 items does not fit 2; `truncate: true` cuts it");
    let output = Bench::new(&pad(", truncate: true"), &records(4)).all();
    assert_eq!(numbers(&output), [0, 0, 1, 0, 1, 2, 1, 2]);
}

#[test]
fn empty_sequences_are_padded_to_nothing_and_floats_with_any_number() {
    let shapes = |op: &str| -> Vec<Vec<usize>> {
        let ops = format!("  - drop: {{ fields: [rows] }}\n  - {op}\n");
        let frames = frames(
            &Bench::new(&format!("{SOURCE}{ops}"), &[records(1), records(1)].concat()).all(),
        );
        frames.iter().map(|frame| frame.get("any").unwrap().shape().to_vec()).collect()
    };
    assert_eq!(shapes("padded_batch: { size: 2, values: { any: 9 } }"), [[2, 0]]);
    let bucketed = "bucket_by_sequence_length: { size: 2, field: any, boundaries: [3]";
    assert_eq!(shapes(&format!("{bucketed} }}")), [[2, 0]]);
    assert_eq!(shapes(&format!("{bucketed}, pad_to_bucket_boundary: true }}")), [[2, 2]]);

    let ops = "  - padded_batch: { size: 3, values: { rows: .nan } }\n";
    let frame = &frames(&Bench::new(&format!("{SOURCE}{ops}"), &records(3)).all())[0];
    let rows: Vec<f32> = values(frame, "rows").into_iter().map(f32::from_le_bytes).collect();
    assert!(
        rows[..4].iter().all(|x| x.is_nan()) && rows[6..8].iter().all(|x| x.is_nan()),
        "{rows:?}"
    );
    assert_eq!([&rows[4..6], &rows[8..]].concat(), [0.0, 1.0, 0.0, 1.0, 2.0, 3.0]);
    let ops = "  - pad_sequence: { field: rows, length: 1, value: -.inf, truncate: true }
  - padded_batch: { size: 2 }\n";
    let frame = &frames(&Bench::new(&format!("{SOURCE}{ops}"), &records(2)).all())[0];
    let rows: Vec<f32> = values(frame, "rows").into_iter().map(f32::from_le_bytes).collect();
    assert_eq!(rows, [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 1.0]);
}

#[test]
fn fields_are_combined_where_they_stand() {
    let of = |ops: &str, records: &[Vec<u8>]| {
        let output =
            Bench::new(&format!("{SOURCE}  - drop: {{ fields: [rows] }}\n{ops}"), records).all();
        let frames = frames(&output);
        let numbers = |name: &str| -> Vec<i64> {
            values(&frames[0], name).into_iter().map(i64::from_le_bytes).collect()
        };
        (numbers("any"), frames[0].get("n").map(|_| numbers("n")).unwrap_or_default())
    };
    // `n` is delivered, read by the other field, and changed later.
    let ops = "  - length: { field: any, into: n }
  - pad_sequence: { field: any, length: 2, truncate: true }
  - multiply: { field: any, by: n }
  - add: { field: any, value: 1 }
  - subtract: { field: n, by: n }
  - batch: { size: 3 }\n";
    assert_eq!(of(ops, &records(3)), (vec![1, 1, 2, 1, 3, 5], vec![0, 0, 0]));
    let ops = "  - multiply: { field: any, by: any }\n  - padded_batch: { size: 3 }\n";
    assert_eq!(of(ops, &records(3)).0, [0, 0, 1, 0, 1, 4]);

    let reason = |ops: &str| {
        let bench =
            Bench::new(&format!("{SOURCE}  - drop: {{ fields: [rows] }}\n{ops}"), &records(4)[2..]);
        bench.reason()
    };
    let batch = "  - padded_batch: { size: 2 }\n";
    let (op, why) =
        reason(&format!("  - multiply: {{ field: any, value: 9223372036854775807 }}\n{batch}"));
    assert_eq!(
        (&*op, &*why),
        ("multiply", "item 1: i64 cannot hold 2 * 9223372036854775807: `cast` it before")
    );
    let shorter = "  - copy: { field: any, into: y }\n  - truncate: { field: y, length: 1 }\n";
    let (_, why) = reason(&format!("{shorter}  - add: {{ field: any, by: y }}\n{batch}"));
    assert_eq!(why, "it has 2 items, and `y` 1: both must have one shape");
    let zeros = "  - copy: { field: any, into: y }\n  - subtract: { field: y, value: 2 }\n";
    let (_, why) = reason(&format!("{zeros}  - divide: {{ field: any, by: y }}\n{batch}"));
    assert_eq!(why, "it is divided by `y`, which is 0 at item 1");
}

/// Remainder rows that the trainer's host pads equal the batch that a worker makes of the same
/// rows.
#[test]
fn rows_left_over_are_padded_as_a_batch_is() {
    let yaml = |size: u32| format!("{SOURCE}  - padded_batch: {{ size: {size} }}\n");
    let chunk = |output: &SplitOutput| {
        Chunk::open(Bytes::from(output.object.clone()), &ChunkLimits::default()).unwrap()
    };
    let left_over = Bench::new(&yaml(9), &records(5));
    let whole = Bench::new(&yaml(5), &records(5));
    let remainder = chunk(&left_over.all());
    assert!(left_over.program.pads() && remainder.remainder().is_some());
    let frame = remainder.tensors(remainder.remainder().unwrap()).unwrap();
    let padded =
        left_over.program.pad(&frame, &ChunkLimits::default(), ::bytes::BytesMut::with_capacity);
    let batch = chunk(&whole.all()).frame(0).unwrap();
    assert_eq!(padded.unwrap(), batch, "the same bytes");
}

#[test]
fn lists_are_unbatched_side_by_side() {
    let ops = "  - length: { field: any, into: n }
  - unbatch: { fields: [rows, any] }
  - batch: { size: 3 }\n";
    let output = Bench::new(&format!("{SOURCE}{ops}"), &records(4)).all();
    assert_eq!((output.rows, output.batches), (6, 2), "the record without items makes none");
    assert_eq!(numbers(&output), [1, 1, 2, 1, 2, 3]);
    let frames = frames(&output);
    let of = |name: &str| -> Vec<i64> {
        let all = frames.iter().flat_map(|frame| values::<8>(frame, name));
        all.map(i64::from_le_bytes).collect()
    };
    assert_eq!(of("n"), [1, 2, 2, 3, 3, 3], "other fields are repeated");
    let rows = frames.iter().flat_map(|frame| values::<4>(frame, "rows"));
    let rows: Vec<f32> = rows.map(f32::from_le_bytes).collect();
    assert_eq!(rows, [0., 1., 0., 1., 2., 3., 0., 1., 2., 3., 4., 5.]);
    let copies = frames.iter().flat_map(|frame| values::<4>(frame, "__copy__"));
    assert_eq!(copies.map(u32::from_le_bytes).collect::<Vec<_>>(), [0, 0, 1, 0, 1, 2]);

    let ops = "  - truncate: { field: rows, length: 2 }\n  - unbatch\n  - batch: { size: 3 }\n";
    let bench = Bench::new(&format!("{SOURCE}{ops}"), &records(4)).policy(ErrorPolicy::Skip);
    let output = bench.all();
    assert_eq!((numbers(&output), output.skipped.len()), (vec![1, 1, 2], 1));
    assert_eq!(output.skipped[0].op, "unbatch");
    assert_eq!(
        output.skipped[0].reason,
        "`any` has 3 items and `rows` 2: lists that are unbatched have equally many"
    );
}

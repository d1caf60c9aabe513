//! Elements that are dropped, become several, or differ in length.

use super::*;

/// Records with an id, three numbers and a text of `i % 7` letters.
fn word_records(n: i64) -> Vec<Vec<u8>> {
    let record = |i: i64| {
        let text: Vec<u8> = (0..i % 7).map(|at| b'a' + at as u8).collect();
        example([
            ("id", ints(&[i])),
            ("three", ints(&[10 * i, 10 * i + 1, 10 * i + 2])),
            ("text", bytes(&text)),
        ])
    };
    (0..n).map(record).collect()
}

fn words(ops: &str, n: i64) -> SplitOutput {
    let source = "
source:
  tfrecord: x
  features:
    id: { dtype: i64 }
    three: { dtype: i64, shape: [3] }
    text: { dtype: bytes }
ops:
";
    let ops = ops.lines().map(|line| format!("  {}\n", line.trim()));
    Bench::new(&format!("{source}{}", ops.collect::<String>()), &word_records(n)).all()
}

fn longs(frame: &ChunkFrame, name: &str) -> Vec<i64> {
    let values = frame.get(name).unwrap().values();
    values.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn copies(frame: &ChunkFrame) -> Vec<u32> {
    let values = frame.get("__copy__").unwrap().values();
    values.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_filter_leaves_elements_out_without_a_word() {
    let output = words(
        "- filter: { field: text, min: 2, max: 4 }
         - filter: { field: id, in: [2, 3, 9, 11, 16] }
         - drop: { fields: [text] }
         - batch: { size: 2 }",
        20,
    );
    let frames = frames(&output);
    assert_eq!((output.rows, output.batches, output.remainder_rows), (5, 2, 1));
    let ids: Vec<i64> = frames.iter().flat_map(|frame| longs(frame, "id")).collect();
    assert_eq!(ids, [2, 3, 9, 11, 16]);
    assert!(output.skipped.is_empty());
    let elements: Vec<u64> = output.metrics.iter().map(|op| op.num_elements).collect();
    assert_eq!(elements, [20, 9, 5, 5, 3]);
}

#[test]
fn nothing_left_is_an_empty_object() {
    let output = words(
        "- filter: { field: id, min: 100 }\n- drop: { fields: [text] }\n- batch: { size: 2 }",
        9,
    );
    assert_eq!((output.rows, output.batches, output.remainder_rows), (0, 0, 0));
    assert!(frames(&output).is_empty());
}

#[test]
fn duplicates_are_elements_of_their_own() {
    let output = words(
        "- duplicate: { copies: 3 }
         - drop: { fields: [text] }
         - flat_map: { field: three }
         - batch: { size: 5 }",
        2,
    );
    assert_eq!((output.rows, output.batches, output.remainder_rows), (18, 3, 3));
    let frames = frames(&output);
    let all = |name| frames.iter().flat_map(|frame| longs(frame, name)).collect::<Vec<_>>();
    assert_eq!(all("id"), [[0; 9], [1; 9]].concat());
    let (zero, one) = ([0, 1, 2].repeat(3), [10, 11, 12].repeat(3));
    assert_eq!(all("three"), [zero, one].concat());
    // Every element of a record has its own number.
    let mut numbers: Vec<u32> = frames.iter().flat_map(copies).take(9).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 9);
}

#[test]
fn random_operators_draw_anew_for_each_view() {
    let pipeline = RESNET.replace("  - random", "  - duplicate\n  - random");
    let output = Bench::new(&pipeline, &image_records(6)).all();
    assert_eq!((output.rows, output.batches), (12, 3));
    let views = rows(&output);
    let differ = views.chunks(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert!(differ >= 5, "{differ} of 6 pairs differ");
    // Records come in the same order as without `duplicate`.
    let single = rows(&Bench::new(RESNET, &image_records(6)).all());
    let firsts: Vec<_> = views.iter().step_by(2).map(|(key, _)| *key).collect();
    assert_eq!(firsts, single.iter().map(|(key, _)| *key).collect::<Vec<_>>());
}

#[test]
fn a_copy_can_be_treated_apart() {
    let output = words(
        "- copy: { field: text, into: short }
         - truncate: { field: short, length: 2 }
         - length: { field: short, into: short_items }
         - length: { field: text, into: text_items }
         - drop: { fields: [three] }
         - padded_batch: { size: 7, values: { text: 46 } }",
        7,
    );
    let frames = frames(&output);
    assert_eq!(longs(&frames[0], "short_items"), [0, 1, 2, 2, 2, 2, 2]);
    assert_eq!(longs(&frames[0], "text_items"), [0, 1, 2, 3, 4, 5, 6]);
    let text = frames[0].get("text").unwrap();
    assert_eq!(text.shape(), [7, 6]);
    assert_eq!(&text.values()[..24], b"......a.....ab....abc...");
    assert_eq!(frames[0].get("short").unwrap().shape(), [7, 2]);
}

#[test]
fn remainders_keep_their_lengths() {
    let ops = "- drop: { fields: [three] }\n- padded_batch: { size: 4, lengths: { text: 9 } }";
    let output = words(ops, 6);
    assert_eq!((output.rows, output.batches, output.remainder_rows), (6, 1, 2));
    let frames = frames(&output);
    assert_eq!(frames[0].get("text").unwrap().shape(), [4, 9]);
    let left = frames[1].get("text").unwrap();
    assert_eq!((left.row(0), left.row(1)), (Some(&b"abcd"[..]), Some(&b"abcde"[..])));
}

#[test]
fn too_long_for_its_padding_is_a_bad_record() {
    let source = "
source: { tfrecord: x, features: { text: { dtype: bytes } } }
ops: [{ padded_batch: { size: 4, lengths: { text: 5 } } }]
";
    let output = Bench::new(source, &word_records(8)).policy(ErrorPolicy::Skip).all();
    assert_eq!((output.rows, output.skipped.len()), (7, 1));
    assert_eq!(output.skipped[0].op, "padded_batch");
    let reason = &output.skipped[0].reason;
    assert_eq!(
        reason,
        "`text` has 6 items, more than the 5 it is padded to; put `truncate` before"
    );
}

#[test]
fn ragged_rows_are_values_and_offsets() {
    let ops = "- drop: { fields: [three] }\n- batch: { size: 3, ragged: true }";
    let output = words(ops, 4);
    let frames = frames(&output);
    let rows: Vec<_> = (0..3).map(|row| frames[0].get("text").unwrap().row(row).unwrap()).collect();
    assert_eq!(rows, [&b""[..], b"a", b"ab"]);
    assert_eq!(frames[1].get("text").unwrap().row(0), Some(&b"abc"[..]));
}

#[test]
fn buckets_bring_like_lengths_together() {
    let ops = "- drop: { fields: [three] }
         - bucket_by_sequence_length: { field: text, boundaries: [3, 6], size: 4, pad_to_bucket_boundary: true }";
    let output = words(ops, 21);
    assert_eq!((output.rows, output.batches, output.remainder_rows), (21, 5, 1));
    let frames = frames(&output);
    let widths: Vec<usize> =
        frames.iter().take(5).map(|frame| frame.get("text").unwrap().shape()[1]).collect();
    // Lengths 0..=6, three times each: nine below 3, nine below 6, three of 6. The buckets leave
    // one, one and three rows, so the first batch of the rest has one row of each short bucket and
    // two of length 6.
    assert_eq!(widths, [2, 5, 2, 5, 6]);
    let mut ids: Vec<i64> = frames.iter().flat_map(|frame| longs(frame, "id")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..21).collect::<Vec<_>>());
    assert_eq!(output.object, words(ops, 21).object);
}

#[test]
fn each_bucket_has_its_batch_size() {
    let ops = "- drop: { fields: [three] }
         - bucket_by_sequence_length: { field: text, boundaries: [3, 6], sizes: [6, 4, 2] }";
    let output = words(ops, 21);
    // Nine below 3, nine below 6 and three of 6 make one of six, two of four and one of two. The rest, longest first: the
    // only one of 6 allows a batch of two, and three short ones are a batch and a remainder for less than the smallest size.
    assert_eq!((output.rows, output.batches, output.remainder_rows), (21, 6, 1));
    let frames = frames(&output);
    let shape = |frame: &ChunkFrame| (frame.rows(), frame.get("text").unwrap().shape()[1]);
    let shapes: Vec<_> = frames.iter().take(6).map(shape).collect();
    assert_eq!(shapes, [(6, 2), (4, 5), (2, 6), (4, 5), (2, 6), (2, 1)]);
    let mut ids: Vec<i64> = frames.iter().flat_map(|frame| longs(frame, "id")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..21).collect::<Vec<_>>());
    assert_eq!(output.object, words(ops, 21).object);
}

#[test]
fn a_batch_has_one_key() {
    // Keys 0 to 6, three times each: lengths of the text.
    let ops = "- drop: { fields: [three] }\n- group_by_window: { field: text, size: 2 }";
    let output = words(ops, 21);
    assert_eq!((output.rows, output.batches, output.remainder_rows), (21, 14, 0));
    let ids = |output: &SplitOutput| -> Vec<Vec<i64>> {
        frames(output).iter().map(|frame| longs(frame, "id")).collect()
    };
    // Whole windows come as they fill, and what is left by key.
    let whole = (0..7).map(|key| vec![key, key + 7]);
    let expected: Vec<Vec<i64>> = whole.chain((14..21).map(|id| vec![id])).collect();
    assert_eq!(ids(&output), expected);
    assert_eq!(output.object, words(ops, 21).object);

    let ops = "- drop: { fields: [three] }
         - group_by_window: { field: id, boundaries: [2, 15], sizes: [4, 10, 3] }";
    let output = words(ops, 21);
    assert_eq!((output.rows, output.batches, output.remainder_rows), (21, 5, 0));
    let left = [(0..2), (12..15)].map(|ids| ids.collect::<Vec<i64>>());
    let expected = [(2..12).collect(), (15..18).collect(), (18..21).collect()];
    assert_eq!(ids(&output), [expected.to_vec(), left.to_vec()].concat());
}

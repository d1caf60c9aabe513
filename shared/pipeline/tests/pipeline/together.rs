//! Operators that move several fields: parameters, output schemas and errors.

use super::*;

fn source(ops: &str) -> String {
    format!(
        "source:\n  tfrecord: x\n  features:\n    image: {{ dtype: bytes }}\n    mask: {{ dtype: bytes }}\n    \
         bbox: {{ dtype: f32, shape: [-1, 4] }}\n    cls: {{ dtype: i64, shape: [-1] }}\n    \
         whole: {{ dtype: i64, shape: [-1, 4] }}\n    label: {{ dtype: i64 }}\nops:\n  - decode\n  \
         - decode: {{ field: mask, mode: indices }}\n  - drop: {{ fields: [whole] }}\n{ops}"
    )
}

fn schema_after(ops: &str) -> Vec<String> {
    let pipeline =
        gristmill_operators::parse(&source(ops)).unwrap_or_else(|error| panic!("{ops}: {error}"));
    let again = gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), pipeline.canonical_json(), "{ops}");
    let fields = &pipeline.schemas().last().unwrap().fields;
    ["image", "mask", "bbox", "cls"].map(|name| fields[name].to_string()).to_vec()
}

const BATCH: &str = "  - padded_batch: { size: 2 }\n";

#[test]
fn every_field_that_is_named_changes() {
    let all = "boxes: [bbox], labels: [cls]";
    let sized = "  - resize: { size: [20, 30], fields: [image, mask] }\n";
    for (op, size) in [
        ("resize: { size: [4, 5], X }", "[4, 5"),
        ("random_resized_crop: { size: [4, 5], X }", "[4, 5"),
        ("center_crop: { size: [4, 5], X }", "[4, 5"),
        ("random_crop: { size: [4, 5], X }", "[4, 5"),
        ("crop: { height: 4, width: 5, X }", "[4, 5"),
        ("resize_shorter: { size: 10, X }", "[10, 15"),
        ("pad: { padding: 1, mask_fill: 255, X }", "[22, 32"),
        ("flip: { X }", "[20, 30"),
        ("vertical_flip: { X }", "[20, 30"),
        ("rotate: { degrees: 3, mask_fill: 255, X }", "[20, 30"),
        ("shear: { degrees: 3, X }", "[20, 30"),
    ] {
        for fields in ["fields: [image, mask]", "field: image, masks: mask", "masks: [mask]"] {
            let op = op.replace('X', &format!("{fields}, {all}"));
            let after = schema_after(&format!("{sized}  - {op}\n{BATCH}"));
            let (image, mask) = (format!("u8 {size}, 3]"), format!("u8 {size}, 1]"));
            assert_eq!(after, [image.as_str(), &mask, "f32 [?, 4]", "i64 [?]"], "{op}");
        }
    }
    // A mask may be moved alone and have any dtype.
    let alone = "  - cast: { field: mask, dtype: i64 }\n  - resize: { field: mask, size: 8 }\n  \
                 - resize: { size: 8 }\n";
    assert_eq!(schema_after(&format!("{alone}{BATCH}"))[1], "i64 [8, 8, 1]");
}

#[test]
fn images_decoded_as_indices_are_masks() {
    let ops = "  - resize: { size: 8, fields: [image, mask] }\n";
    let json =
        gristmill_operators::parse(&source(&format!("{ops}{BATCH}"))).unwrap().canonical_json();
    assert!(
        json.contains(r#""field":"image","fields":["image","mask"],"masks":["mask"]"#),
        "{json}"
    );
    // The canonical form for a single image stays as it was.
    let json = gristmill_operators::parse(RESNET).unwrap().canonical_json();
    assert!(json.contains(r#""params":{"field":"image","size":[224,224],"scale""#), "{json}");
}

#[test]
fn fields_that_cannot_move_together_are_refused_with_advice() {
    for (op, advice) in [
        ("flip: { fields: [image, image] }", "named twice"),
        ("flip: { fields: [image, mask], boxes: [mask] }", "named twice"),
        ("flip: { field: mask, fields: [image, mask] }", "write `fields` alone"),
        ("flip: { fields: [] }", "a list of field names"),
        ("flip: { fields: [image, maks] }", "name one with `field:`"),
        ("flip: { boxes: [cls] }", "f32 [n, 4]"),
        ("flip: { boxes: [bbox], labels: [label] }", "a row of `labels`"),
        ("flip: { labels: [cls] }", "`labels` is about boxes"),
        ("flip: { min_area: 3 }", "`min_area` is about boxes"),
        ("flip: { boxes: [bbox], min_area: -1 }", "a number from 0"),
        ("flip: { boxes: [bbox], min_visibility: 2 }", "a number from 0 to 1"),
        ("flip: { boxes: [bbox], box_format: yxyx }", "xyxy, xywh or cxcywh"),
        ("flip: { mask_fill: 3 }", "no key `mask_fill`"),
        ("pad: { padding: 1, masks: [mask], mask_fill: 256 }", "from 0 to 255"),
        (
            "resize: { size: 8, field: mask }\n  - resize: { size: 9 }\n  - flip: { masks: [mask] }",
            "same height and width",
        ),
        ("gaussian_blur: { kernel_size: 3, fields: [image, mask] }", "no key `fields`"),
        ("decode: { field: mask, mode: indices, channels: 3 }", "leave `channels` out"),
        ("decode: { field: mask, mode: palette }", "colours or indices"),
        ("decode: { field: mask, dtype: u16 }", "u8"),
    ] {
        let error = error(&source(&format!("  - {op}\n{BATCH}")));
        assert!(error.contains(advice), "{op}: {error}");
        assert!(error.starts_with("line "), "{error}");
    }
    let whole = source(&format!("  - flip: {{ boxes: [whole] }}\n{BATCH}"));
    let whole = whole.replace("  - drop: { fields: [whole] }\n", "");
    assert!(error(&whole).contains("`cast` it to f32"));
}

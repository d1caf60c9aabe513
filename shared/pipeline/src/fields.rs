//! The fields that an operator on images moves together: images, masks, and boxes with labels.

use crate::{
    FieldDType, FieldSchema, Parameter, ParameterKind, PipelineError,
    flow::SchemaFlow,
    node::{NodeValue, SyntaxNode},
    table::{MappingReader, absent, or},
};
use serde::Serialize;

/// Maximum number of fields that one operator moves.
const MAX_FIELDS: usize = 64;
/// Maximum value of `min_area` and `min_size`, in pixels.
const MAX_PIXELS: f64 = 1e9;

/// Parameters of an operator that moves several fields together and creates new pixels.
pub const OF_FILLED_FIELDS: &[Parameter] = &[
    or("field", ParameterKind::Field, "image", "The image; `fields` where there are several."),
    absent(
        "fields",
        ParameterKind::List(&ParameterKind::Field),
        "Images and masks, in place of `field`. They must have one height and width: where a record's differ, it is bad, and its error names both. Draws depend on the first.",
    ),
    absent(
        "masks",
        ParameterKind::List(&ParameterKind::Field),
        "Which of them hold class numbers, beside those decoded with `mode: indices`; names that `fields` lacks are added to it. Numbers of any dtype, `[h, w, c]`.",
    ),
    absent(
        "boxes",
        ParameterKind::List(&ParameterKind::Field),
        "Fields of boxes, f32 `[n, 4]` -> `[m, 4]`: `cast` those of whole numbers before.",
    ),
    absent(
        "labels",
        ParameterKind::List(&ParameterKind::Field),
        "Fields `[n, ..]` with a row for each box: rows leave with their boxes.",
    ),
    or(
        "box_format",
        ParameterKind::Choice(&["xyxy", "xywh", "cxcywh"]),
        "xyxy",
        "Left, top, right, bottom; or `xywh`: left, top, width, height; or `cxcywh`: middle, width, height.",
    ),
    or(
        "normalised_boxes",
        ParameterKind::Bool,
        "false",
        "Boxes are shares of width and height, 0 to 1, and not pixels.",
    ),
    or(
        "min_area",
        ParameterKind::Number { min: 0.0, max: MAX_PIXELS },
        "1",
        "Boxes with less area, in pixels of what comes out, leave.",
    ),
    or(
        "min_size",
        ParameterKind::Number { min: 0.0, max: MAX_PIXELS },
        "1",
        "As `min_area`, of width and height.",
    ),
    or(
        "min_visibility",
        ParameterKind::Number { min: 0.0, max: 1.0 },
        "0",
        "Boxes of which less than this share of the area lies within the image after the move leave.",
    ),
    or(
        "mask_fill",
        ParameterKind::Number { min: -1e9, max: 1e9 },
        "0",
        "What masks hold where the image was not, such as 255 to be ignored. Of `center_crop`, `random_crop`, `pad`, `rotate` and `shear`.",
    ),
];

/// Parameters of an operator that creates no new pixels: without `mask_fill`, the last one.
pub const OF_FIELDS: &[Parameter] = OF_FILLED_FIELDS.split_at(OF_FILLED_FIELDS.len() - 1).0;

/// Parameters that concern boxes.
const OF_BOXES: [&str; 6] =
    ["labels", "box_format", "normalised_boxes", "min_area", "min_size", "min_visibility"];

/// All fields of an element that one operator moves with one draw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageFields {
    /// The first image. Draws depend on its size.
    pub field: String,
    /// All images and masks, `field` first; empty if there is only one. All have the same height
    /// and width.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Images that hold class numbers. They are resampled from the nearest pixel, never
    /// interpolated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masks: Vec<String>,
    /// Value of new pixels in masks.
    #[serde(skip_serializing_if = "is_zero")]
    pub mask_fill: f64,
    #[serde(flatten)]
    pub boxes: Option<BoxFields>,
}

/// Fields of boxes: f32 `[n, 4]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxFields {
    pub boxes: Vec<String>,
    /// Fields `[n, ..]` with one row per box. Rows are dropped with their boxes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    pub box_format: BoxFormat,
    /// Whether coordinates are fractions of the image's width and height.
    pub normalised_boxes: bool,
    /// Minimum area in output pixels of a box that is kept.
    pub min_area: f64,
    /// Minimum width and height in output pixels.
    pub min_size: f64,
    /// Minimum fraction of its area that a box must keep within the image.
    pub min_visibility: f64,
}

/// Meaning of the four numbers of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
    /// Centre, width, height.
    Cxcywh,
}

/// An image or mask as input of an operator.
pub struct ImageInput<'a> {
    pub name: &'a str,
    pub schema: &'a FieldSchema,
    /// Origin for messages, such as " after `decode`".
    pub origin: String,
    is_mask: bool,
    mask_fill: f64,
}

impl ImageInput<'_> {
    /// Value of new pixels; `fill` is the value for images.
    pub fn fill(&self, fill: f64) -> f64 {
        if self.is_mask { self.mask_fill } else { fill }
    }
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

impl ImageFields {
    /// A single image.
    pub fn one(field: impl Into<String>) -> Self {
        let (fields, masks) = (Vec::new(), Vec::new());
        ImageFields { field: field.into(), fields, masks, mask_fill: 0.0, boxes: None }
    }

    /// Reads `field` or `fields`, `masks`, `boxes` and the parameters of boxes.
    pub fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let masks = names(params, "masks")?;
        let first = params.get("field").map(|node| params.text("field", node)).transpose()?;
        let mut fields = names(params, "fields")?;
        let field = match (first, fields.first()) {
            (Some(field), Some(first)) if field != *first => {
                return Err(params.error(
                    "`field` is the first of `fields` where both are given: write `fields` alone",
                ));
            }
            (Some(field), _) => field,
            (None, Some(first)) => first.clone(),
            (None, None) => "image".to_owned(),
        };
        if fields.is_empty() {
            fields.push(field.clone());
        }
        fields.extend(
            masks.iter().filter(|mask| !fields.contains(mask)).cloned().collect::<Vec<_>>(),
        );
        let boxes = BoxFields::parse(params)?;
        let moved = boxes.iter().flat_map(|boxes| boxes.boxes.iter().chain(&boxes.labels));
        let all: Vec<&String> = fields.iter().chain(moved).collect();
        if let Some(twice) = (1..all.len()).find(|i| all[..*i].contains(&all[*i])) {
            return Err(params.error(format!("`{}` is named twice; once is enough", all[twice])));
        }
        if all.len() > MAX_FIELDS {
            return Err(params.error(format!("more than {MAX_FIELDS} fields are named")));
        }
        if fields.len() == 1 {
            fields.clear();
        }
        Ok(ImageFields { field, fields, masks, mask_fill: 0.0, boxes })
    }

    /// Like [`parse`](Self::parse), for an operator that creates new pixels: also reads
    /// `mask_fill`.
    pub fn parse_filled(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let mask_fill = params.read_number("mask_fill")?;
        Ok(ImageFields { mask_fill, ..Self::parse(params)? })
    }

    /// Images and masks, `field` first.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let others = self.fields.iter().map(String::as_str).filter(|name| *name != self.field);
        [self.field.as_str()].into_iter().chain(others)
    }

    /// Every field that the operator moves.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let boxes = self.boxes.iter().flat_map(|boxes| boxes.boxes.iter().chain(&boxes.labels));
        self.images().chain(boxes.map(String::as_str))
    }

    /// Whether it moves only one field.
    pub fn is_one(&self) -> bool {
        self.all().nth(1).is_none()
    }

    /// Whether the first image is a mask.
    pub fn first_is_mask(&self) -> bool {
        self.is_mask(&self.field)
    }

    /// Value of new pixels of the first image; `fill` is the value for images.
    pub fn fill(&self, fill: f64) -> f64 {
        if self.first_is_mask() { self.mask_fill } else { fill }
    }

    /// Whether the field holds class numbers, which are never interpolated.
    pub fn is_mask(&self, name: &str) -> bool {
        self.masks.iter().any(|mask| mask == name)
    }

    /// Returns these settings for one of the images alone.
    #[must_use]
    pub fn only(&self, name: &str) -> Self {
        let masks = self.masks.iter().filter(|mask| *mask == name).cloned().collect();
        ImageFields { masks, mask_fill: self.mask_fill, ..ImageFields::one(name) }
    }

    /// Adds the images that were decoded as masks to the masks.
    pub fn find_masks(&mut self, flow: &SchemaFlow) {
        let found = |name: &&str| flow.is_mask(name) && !self.is_mask(name);
        let found: Vec<String> = self.images().filter(found).map(str::to_owned).collect();
        self.masks.extend(found);
    }

    /// Writes the output schema of each field to `flow`. Images must have one of `dtypes` and 1 or
    /// 3 channels; masks must be numbers. `made` returns the output schema of an image or mask.
    pub fn infer(
        &self,
        op: &'static str,
        flow: &mut SchemaFlow,
        dtypes: &[FieldDType],
        made: impl Fn(&ImageInput<'_>) -> Result<FieldSchema, String>,
    ) -> Result<(), String> {
        let mut writes = Vec::new();
        for name in self.images() {
            let is_mask = self.is_mask(name);
            let schema = if is_mask {
                flow.mask_of(op, name)?
            } else {
                flow.image_of(op, name, dtypes, &[1, 3])?
            };
            let first = flow.field(op, &self.field)?;
            let differ = |i: usize| matches!((schema.shape[i], first.shape[i]), (Some(a), Some(b)) if a != b);
            if differ(0) || differ(1) {
                return Err(format!(
                    "`{op}` moves `{name}` with `{}`, but the one is {schema}{} and the other {first}{}: \
                     they must have the same height and width",
                    self.field,
                    flow.origin(name),
                    flow.origin(&self.field)
                ));
            }
            let origin = flow.origin(name);
            let given = ImageInput { name, schema, origin, is_mask, mask_fill: self.mask_fill };
            writes.push((name, made(&given)?));
        }
        for (name, schema) in writes {
            flow.write(op, name, schema);
        }
        self.boxes.iter().try_for_each(|boxes| boxes.infer(op, flow))
    }
}

impl BoxFields {
    fn parse(params: &mut MappingReader<'_>) -> Result<Option<Self>, PipelineError> {
        let boxes = names(params, "boxes")?;
        if boxes.is_empty() {
            let given = OF_BOXES.iter().find(|key| params.get(key).is_some());
            return given.map_or(Ok(None), |key| {
                Err(params.error(format!("`{key}` is about boxes: name their fields with `boxes`")))
            });
        }
        let labels = names(params, "labels")?;
        if boxes.len() > 1 && !labels.is_empty() {
            return Err(params.error(
                "`labels` have a row for each box of one field: name one in `boxes`, or no `labels`",
            ));
        }
        let formats = [BoxFormat::Xyxy, BoxFormat::Xywh, BoxFormat::Cxcywh];
        let box_format = params.read_choice("box_format", &formats)?;
        let normalised_boxes = params.read_flag("normalised_boxes")?;
        let min_area = params.read_number("min_area")?;
        let min_size = params.read_number("min_size")?;
        let min_visibility = params.read_number("min_visibility")?;
        Ok(Some(BoxFields {
            boxes,
            labels,
            box_format,
            normalised_boxes,
            min_area,
            min_size,
            min_visibility,
        }))
    }

    fn infer(&self, op: &'static str, flow: &mut SchemaFlow) -> Result<(), String> {
        let mut rows = None;
        for name in &self.boxes {
            let field = flow.field(op, name)?;
            if field.dtype != FieldDType::F32 || !matches!(field.shape[..], [_, Some(4)]) {
                let advice = match field.dtype {
                    FieldDType::F32 | FieldDType::Bytes => "",
                    _ => "; `cast` it to f32 before",
                };
                return Err(format!(
                    "`{op}` moves boxes (f32 [n, 4]), but `{name}` is {field}{}{advice}",
                    flow.origin(name)
                ));
            }
            rows = field.shape[0];
            let shape = vec![None, Some(4)];
            flow.write(op, name, FieldSchema { dtype: FieldDType::F32, shape, range: None });
        }
        for name in &self.labels {
            let field = flow.field(op, name)?;
            let items = field.shape.split_first().filter(|_| field.dtype != FieldDType::Bytes);
            let items = items.filter(|_| field.item_bytes().is_some());
            let differ = |n: Option<u32>| matches!((n, rows), (Some(a), Some(b)) if a != b);
            let Some((_, item)) = items.filter(|(n, _)| !differ(**n)) else {
                return Err(format!(
                    "`{op}` keeps a row of `labels` for each box (numbers [n, ..]), but `{name}` is \
                     {field}{}",
                    flow.origin(name)
                ));
            };
            let shape = [None].into_iter().chain(item.iter().copied()).collect();
            let output = FieldSchema { shape, ..field.clone() };
            flow.write(op, name, output);
        }
        Ok(())
    }
}

/// Reads `key`: a field name, or a list of them. Returns an empty list if it is absent.
fn names(params: &mut MappingReader<'_>, key: &'static str) -> Result<Vec<String>, PipelineError> {
    let Some(node) = params.given(key) else { return Ok(Vec::new()) };
    let nodes: &[SyntaxNode] = match &node.value {
        NodeValue::Seq(items) if items.is_empty() => {
            return Err(params.wrong(key, node, "a list of field names"));
        }
        NodeValue::Seq(items) => items,
        _ => std::slice::from_ref(node),
    };
    nodes.iter().map(|node| params.text(key, node)).collect()
}

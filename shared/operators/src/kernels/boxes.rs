//! Bounding boxes under image operators: boxes move with the image and are clipped to it. A box with too
//! little area left is dropped with its label. Computed in f32, step by step, as torchvision does.

use crate::kernels::canvas::{CanvasWindow, WindowOperator};
use crate::kernels::warp::WarpMatrix;
use crate::prelude::*;
use gristmill_kernel::*;

/// Numbers per box.
const NUMBERS: usize = 4;
const BOX_BYTES: usize = NUMBERS * size_of::<f32>();

/// Left, top, right, bottom, in pixels.
type Rect = [f32; NUMBERS];

/// Moves the boxes of one field.
#[derive(Debug)]
struct Mover {
    geometry: OperatorGeometry,
    rules: BoxFields,
}

/// The geometry of an operator, before its random draws.
#[derive(Debug)]
pub(crate) enum OperatorGeometry {
    Mirror { p: f64 },
    UpsideDown { p: f64 },
    Window(Box<dyn WindowOperator>),
    Resize(MaskResize),
    Turn(WarpAngle),
}

/// One geometric step with its draws made, for an image of known size.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GeometryStep {
    Mirror,
    UpsideDown,
    Window(CanvasWindow),
    Scale([usize; 2]),
    Turn(WarpMatrix),
}

impl OperatorGeometry {
    /// The steps for an image of `size`, in order. Draws exactly as the image's own kernel does.
    fn moves(
        &self,
        size: [usize; 2],
        draw: &mut OperatorDraws,
    ) -> Result<[Option<GeometryStep>; 2], String> {
        let one = |only: GeometryStep| Ok([Some(only), None]);
        match self {
            OperatorGeometry::Mirror { p } if draw.unit() < *p => one(GeometryStep::Mirror),
            OperatorGeometry::UpsideDown { p } if draw.unit() < *p => one(GeometryStep::UpsideDown),
            OperatorGeometry::Mirror { .. } | OperatorGeometry::UpsideDown { .. } => {
                Ok([None, None])
            }
            OperatorGeometry::Window(choice) => {
                one(GeometryStep::Window(choice.frame(size, draw)?))
            }
            OperatorGeometry::Resize(resize) => {
                let (window, size) = resize.draw(size, draw)?;
                let window = window.map(|window| GeometryStep::Window(window.into()));
                Ok([window, Some(GeometryStep::Scale(size))])
            }
            OperatorGeometry::Turn(angle) => one(GeometryStep::Turn(angle.matrix(draw))),
        }
    }
}

impl GeometryStep {
    /// Moves a box of an image of `size`.
    fn apply(self, [left, top, right, bottom]: Rect, size: [usize; 2]) -> Rect {
        let [height, width] = size.map(|side| side as f32);
        match self {
            GeometryStep::Mirror => [width - right, top, width - left, bottom],
            GeometryStep::UpsideDown => [left, height - bottom, right, height - top],
            GeometryStep::Window(frame) => {
                let [x, y] = [frame.left as f32, frame.top as f32];
                [left - x, top - y, right - x, bottom - y]
            }
            GeometryStep::Scale(to) => {
                let share = |i: usize| (to[i] as f64 / size[i] as f64) as f32;
                let [y, x] = [share(0), share(1)];
                [left * x, top * y, right * x, bottom * y]
            }
            GeometryStep::Turn(matrix) => {
                let corners = [(left, top), (right, top), (right, bottom), (left, bottom)];
                let corners = corners.map(|corner| matrix.map_point(corner, size));
                let [mut low, mut high] = [corners[0]; 2];
                for [x, y] in &corners[1..] {
                    low = [low[0].min(*x), low[1].min(*y)];
                    high = [high[0].max(*x), high[1].max(*y)];
                }
                [low[0], low[1], high[0], high[1]]
            }
        }
    }

    /// Height and width of the image after the step.
    fn size(self, size: [usize; 2]) -> [usize; 2] {
        match self {
            GeometryStep::Mirror | GeometryStep::UpsideDown | GeometryStep::Turn(_) => size,
            GeometryStep::Window(frame) => [frame.height, frame.width],
            GeometryStep::Scale(to) => to,
        }
    }
}

fn cut([left, top, right, bottom]: Rect, [height, width]: [usize; 2]) -> Rect {
    let x = |x: f32| x.clamp(0.0, width as f32);
    let y = |y: f32| y.clamp(0.0, height as f32);
    [x(left), y(top), x(right), y(bottom)]
}

/// Whether left is left of right, and top above bottom; not of NaN.
fn has_area([left, top, right, bottom]: Rect) -> bool {
    left < right && top < bottom
}

/// Both sides of a box.
fn sides([left, top, right, bottom]: Rect) -> [f32; 2] {
    [right - left, bottom - top]
}

impl Mover {
    /// Moves one box; none if it is empty or reversed, or too little of it is left.
    fn one(
        &self,
        numbers: Rect,
        moves: &[Option<GeometryStep>; 2],
        mut size: [usize; 2],
    ) -> Option<Rect> {
        let mut rect = self.read(numbers, size);
        // Turning would put a reversed box right.
        if !has_area(rect) {
            return None;
        }
        // The box as if the image had no border.
        let mut whole = rect;
        for each in moves.iter().flatten() {
            whole = each.apply(whole, size);
            rect = each.apply(rect, size);
            size = each.size(size);
            rect = cut(rect, size);
        }
        let rect = cut(rect, size);
        let [width, height] = sides(rect);
        let left = width * height;
        let area = sides(whole).map(f64::from).iter().product::<f64>();
        let BoxFields { min_area, min_size, min_visibility, .. } = self.rules;
        let kept = f64::from(width.min(height)) >= min_size
            && f64::from(left) >= min_area
            && has_area(rect)
            && f64::from(width) * f64::from(height) >= area * min_visibility;
        kept.then(|| self.write(rect, size))
    }

    fn read(&self, numbers: Rect, [height, width]: [usize; 2]) -> Rect {
        let [mut a, mut b, mut c, mut d] = numbers;
        if self.rules.normalised_boxes {
            let [height, width] = [height as f32, width as f32];
            (a, b, c, d) = (a * width, b * height, c * width, d * height);
        }
        match self.rules.box_format {
            BoxFormat::Xyxy => [a, b, c, d],
            BoxFormat::Xywh => [a, b, a + c, b + d],
            BoxFormat::Cxcywh => {
                let (left, top) = (a - c / 2.0, b - d / 2.0);
                [left, top, left + c, top + d]
            }
        }
    }

    fn write(&self, rect: Rect, [height, width]: [usize; 2]) -> Rect {
        let [left, top, ..] = rect;
        let [across, down] = sides(rect);
        let mut numbers = match self.rules.box_format {
            BoxFormat::Xyxy => rect,
            BoxFormat::Xywh => [left, top, across, down],
            BoxFormat::Cxcywh => {
                [(left * 2.0 + across) / 2.0, (top * 2.0 + down) / 2.0, across, down]
            }
        };
        if self.rules.normalised_boxes {
            let [height, width] = [height as f32, width as f32];
            let [a, b, c, d] = numbers;
            numbers = [a / width, b / height, c / width, d / height];
        }
        numbers
    }
}

/// The kernel that moves the boxes of `fields` by `geometry`; none if `fields` names no boxes.
pub(crate) fn mover(
    fields: &ImageFields,
    geometry: OperatorGeometry,
) -> Option<Box<dyn MoveBoxes>> {
    let rules = fields.boxes.clone()?;
    Some(Box::new(Mover { geometry, rules }))
}

impl MoveBoxes for Mover {
    fn run(
        &self,
        boxes: &mut [u8],
        size: [usize; 2],
        draw: &mut OperatorDraws,
        kept: &mut Vec<usize>,
    ) -> Result<usize, String> {
        let moves = self.geometry.moves(size, draw)?;
        kept.clear();
        let boxes = boxes.as_chunks_mut::<BOX_BYTES>().0;
        for row in 0..boxes.len() {
            let numbers = boxes[row].as_chunks::<4>().0;
            let numbers = [0, 1, 2, 3].map(|i| f32::from_le_bytes(numbers[i]));
            if let Some(moved) = self.one(numbers, &moves, size) {
                let to = boxes[kept.len()].as_chunks_mut::<4>().0;
                to.iter_mut().zip(moved).for_each(|(to, x)| *to = x.to_le_bytes());
                kept.push(row);
            }
        }
        Ok(kept.len())
    }
}

//! `rotate`: rotates an image by a random angle.

use crate::prelude::*;

/// Interpolation between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    Nearest,
    Bilinear,
}

/// u8 or f32 `[h, w, 1 or 3]` -> the same, rotated counter-clockwise about its centre by an angle drawn
/// uniformly from `degrees`. Pixels from outside the image are `fill`. As torchvision's `RandomRotation`
/// without `expand`, on tensors. Bilinear is within 1 (u8) or 1e-3 (f32) of torchvision 0.29, whose f32
/// positions are less exact. Nearest is equal except midway between two pixels (1 in 200; more at angles
/// such as 30 degrees).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rotate {
    #[serde(flatten)]
    pub fields: Fields,
    /// Bounds of the angle. Written as one number d: -d to d.
    pub degrees: [f64; 2],
    pub interpolation: Interpolation,
    pub fill: f64,
}

impl Define for Rotate {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..with_effect("rotate", 1, Effect::Warp) };

    const PARAMETERS: &'static [Parameter] = &with_fields::<14>(
        &[
            required(
                "degrees",
                Kind::List(&Kind::Number { min: -360.0, max: 360.0 }),
                "Bounds of the angle. Written as one number d: -d to d.",
            ),
            INTERPOLATION,
            FILL,
        ],
        true,
    );

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let degrees = interval(params, "degrees", None, -360.0..=360.0, |d| [-d, d])?;
        let interpolation = interpolation(params)?;
        let fill = real::<Self>(params, "fill")?;
        Ok(Rotate { fields: Fields::parse_filled(params)?, degrees, interpolation, fill })
    }
}

impl Operator for Rotate {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        warped(flow, "rotate", &self.fields, self.fill)
    }

    fn field(&self) -> Option<&str> {
        Some(&self.fields.field)
    }

    fn together(&self) -> Option<&Fields> {
        Some(&self.fields)
    }

    fn together_mut(&mut self) -> Option<&mut Fields> {
        Some(&mut self.fields)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(match self.fields.first_is_mask() {
            true => masks::turn_by(warp::Angle::Rotate(self.degrees), &self.fields, given),
            false => Kernel::transform(warp::Warp::rotate(self, given.dtype, channels_of(given))),
        })
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::Geometry::Turn(warp::Angle::Rotate(self.degrees)))
    }
}

/// Infers the schema of `rotate` and `shear`.
pub(crate) fn warped(
    flow: &mut Flow,
    op: &'static str,
    fields: &Fields,
    fill: f64,
) -> Result<(), String> {
    fields.infer(op, flow, &[DType::U8, DType::F32], |given| {
        let (input, fill) = (given.schema, given.fill(fill));
        check_fill(op, input, fill)?;
        let range = input.range.map(|range| widened(range, fill));
        Ok(FieldSchema { range, ..input.clone() })
    })
}

//! `rotate` and `shear` differ in their angles alone: this is what they share.

use crate::prelude::*;

/// Interpolation between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    Nearest,
    Bilinear,
}

/// An operator that turns an image by random angles of type `A`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turn<A> {
    #[serde(flatten)]
    pub fields: Fields,
    /// Bounds of the angles.
    pub degrees: A,
    pub interpolation: Interpolation,
    /// Value of what was outside the image.
    pub fill: f64,
}

/// Bounds of angles, and the operator that they belong to.
pub trait Angles: Copy + std::fmt::Debug + PartialEq + Serialize + Send + Sync + 'static {
    const DECLARATION: Declaration;
    /// The parameter `degrees`.
    const DEGREES: Parameter;

    /// Parses `degrees`.
    ///
    /// # Errors
    /// The bounds are none.
    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError>;

    /// The bounds, with their meaning.
    fn angle(self) -> Angle;
}

/// Bounds of the random angles, in degrees.
#[derive(Clone, Copy, Debug)]
pub enum Angle {
    Rotate([f64; 2]),
    /// Bounds along x and along y.
    Shear([f64; 4]),
}

impl<A: Angles> Define for Turn<A> {
    const DECLARATION: Declaration = A::DECLARATION;

    const PARAMETERS: &'static [Parameter] =
        &with_fields::<14>(&[A::DEGREES, INTERPOLATION, FILL], true);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let degrees = A::parse(params)?;
        let interpolations = [Interpolation::Nearest, Interpolation::Bilinear];
        let interpolation = choice::<Self, _>(params, "interpolation", &interpolations)?;
        let fill = real::<Self>(params, "fill")?;
        Ok(Turn { fields: Fields::parse_filled(params)?, degrees, interpolation, fill })
    }
}

impl<A: Angles> Operator for Turn<A> {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let op = A::DECLARATION.name;
        self.fields.infer(op, flow, &[DType::U8, DType::F32], |given| {
            let (input, fill) = (given.schema, given.fill(self.fill));
            check_fill(op, input, fill)?;
            let range = input.range.map(|range| widened(range, fill));
            Ok(FieldSchema { range, ..input.clone() })
        })
    }

    moves_fields!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let angle = self.degrees.angle();
        if self.fields.first_is_mask() {
            return Ok(masks::turn_by(angle, &self.fields, given));
        }
        let warp = warp::Warp::new(self, given.dtype, channels_of(given));
        Ok(transform(move |input, output, _, draw| {
            let bytes = input.bytes.len();
            warp.apply(&angle.matrix(draw), input, output.take(bytes)?);
            Ok(Made { bytes, size: input.size })
        }))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::Geometry::Turn(self.degrees.angle()))
    }
}

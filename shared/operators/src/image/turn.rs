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
pub struct RotateOrShear<A> {
    #[serde(flatten)]
    pub fields: ImageFields,
    /// Bounds of the angles.
    pub degrees: A,
    pub interpolation: Interpolation,
    /// Value of what was outside the image.
    pub fill: f64,
}

/// Bounds of angles, and the operator that they belong to.
pub trait AngleBounds:
    Copy + std::fmt::Debug + PartialEq + Serialize + Send + Sync + 'static
{
    const DECLARATION: OperatorDeclaration;
    /// The parameter `degrees`.
    const DEGREES: Parameter;

    /// Parses `degrees`.
    ///
    /// # Errors
    /// The bounds are none.
    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError>;

    /// The bounds, with their meaning.
    fn angle(self) -> WarpAngle;
}

/// Bounds of the random angles, in degrees.
#[derive(Clone, Copy, Debug)]
pub enum WarpAngle {
    Rotate([f64; 2]),
    /// Bounds along x and along y.
    Shear([f64; 4]),
}

impl<A: AngleBounds> OperatorDefinition for RotateOrShear<A> {
    const DECLARATION: OperatorDeclaration = A::DECLARATION;

    const PARAMETERS: &'static [Parameter] =
        &with_fields::<14>(&[A::DEGREES, INTERPOLATION, FILL], true);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let degrees = A::parse(params)?;
        let interpolations = [Interpolation::Nearest, Interpolation::Bilinear];
        let interpolation = choice::<Self, _>(params, "interpolation", &interpolations)?;
        let fill = real::<Self>(params, "fill")?;
        Ok(RotateOrShear {
            fields: ImageFields::parse_filled(params)?,
            degrees,
            interpolation,
            fill,
        })
    }
}

impl<A: AngleBounds> Operator for RotateOrShear<A> {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let op = A::DECLARATION.name;
        self.fields.infer(op, flow, &[FieldDType::U8, FieldDType::F32], |given| {
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
        let warp = warp::ImageWarp::new(self, given.dtype, channels_of(given));
        Ok(transform(move |input, output, _, draw| {
            let bytes = input.bytes.len();
            warp.apply(&angle.matrix(draw), input, output.take(bytes)?);
            Ok(OutputSize { bytes, size: input.size })
        }))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::OperatorGeometry::Turn(self.degrees.angle()))
    }
}

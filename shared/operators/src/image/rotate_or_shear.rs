//! `rotate` and `shear`: an image turned or slanted by random angles.

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
    pub degrees: A,
    pub interpolation: Interpolation,
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
        let interpolation = params.read_choice("interpolation", &interpolations)?;
        let fill = params.read_number("fill")?;
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

    moves_fields!(turn => OperatorGeometry::Turn(turn.degrees.angle()));

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
}

/// u8 or f32 `[h, w, 1 or 3]` -> the same, rotated counter-clockwise about its centre by an angle drawn
/// uniformly from `degrees`. Pixels from outside the image are `fill`. As torchvision's `RandomRotation`
/// without `expand`, on tensors. Bilinear is within 1 (u8) or 1e-3 (f32) of torchvision 0.29, whose f32
/// positions are less exact. Nearest is equal except midway between two pixels (1 in 200; more at angles
/// such as 30 degrees).
pub type Rotate = RotateOrShear<[f64; 2]>;

impl AngleBounds for [f64; 2] {
    const DECLARATION: OperatorDeclaration =
        with_effect("rotate", 1, OperatorEffect::Warp).costs(10_000, 5_000).random();

    const DEGREES: Parameter = required(
        "degrees",
        ParameterKind::List(&ParameterKind::Number { min: -360.0, max: 360.0 }),
        "Bounds of the angle. Written as one number d: -d to d.",
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        interval(params, "degrees", |d| [-d, d])
    }

    fn angle(self) -> WarpAngle {
        WarpAngle::Rotate(self)
    }
}

/// Largest angle; a steeper one leaves no recognisable image.
const MAX_DEGREES: f64 = 89.0;

/// u8 or f32 `[h, w, 1 or 3]` -> the same, sheared about its centre by angles drawn uniformly. Pixels from
/// outside the image are `fill`. As torchvision's `RandomAffine(0, shear=degrees)`, as close as `rotate`.
pub type Shear = RotateOrShear<[f64; 4]>;

impl AngleBounds for [f64; 4] {
    const DECLARATION: OperatorDeclaration =
        with_effect("shear", 1, OperatorEffect::Warp).costs(10_000, 5_000).random();

    const DEGREES: Parameter = required(
        "degrees",
        ParameterKind::List(&ParameterKind::Number { min: -MAX_DEGREES, max: MAX_DEGREES }),
        "Bounds along x, then along y. Written as one number d: x from -d to d; as [low, high]: x.",
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        match params.get("degrees") {
            Some(node @ SyntaxNode { value: NodeValue::Seq(items), .. }) if items.len() == 4 => {
                let range = params.numbers_of("degrees");
                let degrees: [f64; 4] = params.numbers("degrees", node, range)?;
                if degrees[0] > degrees[1] || degrees[2] > degrees[3] {
                    return Err(node.error(
                        "`shear` `degrees` must be [x low, x high, y low, y high], not with low > high",
                    ));
                }
                Ok(degrees)
            }
            _ => {
                let [low, high] = interval(params, "degrees", |d| [-d, d])?;
                Ok([low, high, 0.0, 0.0])
            }
        }
    }

    fn angle(self) -> WarpAngle {
        WarpAngle::Shear(self)
    }
}

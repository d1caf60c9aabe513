//! `shear`: shears an image by random angles.

use crate::prelude::*;

/// Largest angle; a steeper one leaves no recognisable image.
const MAX_DEGREES: f64 = 89.0;

/// u8 or f32 `[h, w, 1 or 3]` -> the same, sheared about its centre by angles drawn uniformly. Pixels from
/// outside the image are `fill`. As torchvision's `RandomAffine(0, shear=degrees)`, as close as `rotate`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shear {
    #[serde(flatten)]
    pub fields: Fields,
    /// Bounds along x, then along y. Written as one number d: x from -d to d; as [low, high]: x.
    pub degrees: [f64; 4],
    pub interpolation: Interpolation,
    pub fill: f64,
}

impl Define for Shear {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..with_effect("shear", 1, Effect::Warp) };

    const PARAMETERS: &'static [Parameter] = &with_fields::<14>(
        &[
            required(
                "degrees",
                Kind::List(&Kind::Number { min: -MAX_DEGREES, max: MAX_DEGREES }),
                "Bounds along x, then along y. Written as one number d: x from -d to d; as [low, high]: x.",
            ),
            INTERPOLATION,
            FILL,
        ],
        true,
    );

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let range = -MAX_DEGREES..=MAX_DEGREES;
        let degrees = match params.get("degrees") {
            Some(node @ Node { value: Value::Seq(items), .. }) if items.len() == 4 => {
                let degrees: [f64; 4] = params.numbers("degrees", node, range)?;
                if degrees[0] > degrees[1] || degrees[2] > degrees[3] {
                    return Err(node.error(
                        "`shear` `degrees` must be [x low, x high, y low, y high], not with low > high",
                    ));
                }
                degrees
            }
            _ => {
                let [low, high] = interval(params, "degrees", None, range, |d| [-d, d])?;
                [low, high, 0.0, 0.0]
            }
        };
        let interpolation = interpolation(params)?;
        let fill = real::<Self>(params, "fill")?;
        Ok(Shear { fields: Fields::parse_filled(params)?, degrees, interpolation, fill })
    }
}

impl Operator for Shear {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        crate::image::rotate::warped(flow, "shear", &self.fields, self.fill)
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
            true => masks::turn_by(warp::Angle::Shear(self.degrees), &self.fields, given),
            false => Kernel::transform(warp::Warp::shear(self, given.dtype, channels_of(given))),
        })
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::Geometry::Turn(warp::Angle::Shear(self.degrees)))
    }
}

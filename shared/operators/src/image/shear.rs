//! `shear`: shears an image by random angles.

use crate::prelude::*;

/// Largest angle; a steeper one leaves no recognisable image.
const MAX_DEGREES: f64 = 89.0;

/// u8 or f32 `[h, w, 1 or 3]` -> the same, sheared about its centre by angles drawn uniformly. Pixels from
/// outside the image are `fill`. As torchvision's `RandomAffine(0, shear=degrees)`, as close as `rotate`.
pub type Shear = RotateOrShear<[f64; 4]>;

impl AngleBounds for [f64; 4] {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("shear", 1, OperatorEffect::Warp).costs(10_000, 5_000)
    };

    const DEGREES: Parameter = required(
        "degrees",
        ParameterKind::List(&ParameterKind::Number { min: -MAX_DEGREES, max: MAX_DEGREES }),
        "Bounds along x, then along y. Written as one number d: x from -d to d; as [low, high]: x.",
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        match params.get("degrees") {
            Some(node @ SyntaxNode { value: NodeValue::Seq(items), .. }) if items.len() == 4 => {
                let range = parameters::numbers_of(&Self::DEGREES);
                let degrees: [f64; 4] = params.numbers("degrees", node, range)?;
                if degrees[0] > degrees[1] || degrees[2] > degrees[3] {
                    return Err(node.error(
                        "`shear` `degrees` must be [x low, x high, y low, y high], not with low > high",
                    ));
                }
                Ok(degrees)
            }
            _ => {
                let [low, high] = interval::<Shear>(params, "degrees", |d| [-d, d])?;
                Ok([low, high, 0.0, 0.0])
            }
        }
    }

    fn angle(self) -> WarpAngle {
        WarpAngle::Shear(self)
    }
}

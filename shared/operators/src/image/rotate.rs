//! `rotate`: rotates an image by a random angle.

use crate::prelude::*;

/// u8 or f32 `[h, w, 1 or 3]` -> the same, rotated counter-clockwise about its centre by an angle drawn
/// uniformly from `degrees`. Pixels from outside the image are `fill`. As torchvision's `RandomRotation`
/// without `expand`, on tensors. Bilinear is within 1 (u8) or 1e-3 (f32) of torchvision 0.29, whose f32
/// positions are less exact. Nearest is equal except midway between two pixels (1 in 200; more at angles
/// such as 30 degrees).
pub type Rotate = RotateOrShear<[f64; 2]>;

impl AngleBounds for [f64; 2] {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("rotate", 1, OperatorEffect::Warp).costs(10_000, 5_000)
    };

    const DEGREES: Parameter = required(
        "degrees",
        ParameterKind::List(&ParameterKind::Number { min: -360.0, max: 360.0 }),
        "Bounds of the angle. Written as one number d: -d to d.",
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        interval::<Rotate>(params, "degrees", |d| [-d, d])
    }

    fn angle(self) -> WarpAngle {
        WarpAngle::Rotate(self)
    }
}

//! `flip` and `vertical_flip`: mirror an image, with a probability.

use crate::prelude::*;

/// `[h, w, 1 or 3]` of u8, f16, bf16 or f32 -> the same, mirrored left to right with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub p: f64,
}

impl OperatorDefinition for Flip {
    const DECLARATION: OperatorDeclaration =
        with_effect("flip", 1, OperatorEffect::Mirror).costs(1_000, 100).random();

    const PARAMETERS: &'static [Parameter] = &with_fields::<11>(&[probability("0.5")], false);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let p = params.read_number("p")?;
        Ok(Flip { fields: ImageFields::parse(params)?, p })
    }
}

impl Operator for Flip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
    }

    moves_fields!(flip => OperatorGeometry::Mirror { p: flip.p });

    fn does_nothing(&self) -> Option<&'static str> {
        // Boxes are clipped to the image even with p 0.
        (self.p == 0.0 && self.fields.boxes.is_none()).then_some("it mirrors nothing with p 0")
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let pixel_bytes = pixel_bytes(input.field()?);
        Ok(sometimes(self.p, move |value, [_, width], _, _| {
            if width > 1 {
                let rows = value.chunks_exact_mut(width * pixel_bytes);
                rows.for_each(|row| mirror(row, pixel_bytes));
            }
            Ok(())
        }))
    }
}

/// Reverses the pixels of a row.
#[cfg(feature = "kernels")]
fn mirror(row: &mut [u8], pixel_bytes: usize) {
    // With constant sizes the compiler moves a whole pixel at once.
    match pixel_bytes {
        3 => row.as_chunks_mut::<3>().0.reverse(),
        6 => row.as_chunks_mut::<6>().0.reverse(),
        12 => row.as_chunks_mut::<12>().0.reverse(),
        bytes => {
            row.reverse();
            row.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
        }
    }
}

/// u8, f16, bf16 or f32 `[h, w, 1 or 3]` -> the same, mirrored top to bottom with probability `p`.
/// Exactly as torchvision's `RandomVerticalFlip`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerticalFlip {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub p: f64,
}

impl OperatorDefinition for VerticalFlip {
    const DECLARATION: OperatorDeclaration =
        with_effect("vertical_flip", 1, OperatorEffect::Mirror).costs(1_000, 100).random();

    const PARAMETERS: &'static [Parameter] = &with_fields::<11>(&[probability("0.5")], false);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(VerticalFlip { p: params.read_number("p")?, fields: ImageFields::parse(params)? })
    }
}

impl Operator for VerticalFlip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("vertical_flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
    }

    moves_fields!(flip => OperatorGeometry::UpsideDown { p: flip.p });

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        input.field()?;
        Ok(sometimes(self.p, |value, [height, _], _, _| {
            if height > 1 {
                let row_bytes = value.len() / height;
                let (mut top, mut bottom) = value.split_at_mut(height / 2 * row_bytes);
                while let Some((row, rest)) = top.split_at_mut_checked(row_bytes)
                    && !row.is_empty()
                {
                    let (before, other) = bottom.split_at_mut(bottom.len() - row_bytes);
                    row.swap_with_slice(other);
                    (top, bottom) = (rest, before);
                }
            }
            Ok(())
        }))
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::*;

    use gristmill_kernel::{DrawKey, KernelScratch, NoAssets};
    use gristmill_model::RecordKey;

    #[test]
    fn rows_are_mirrored_by_whole_pixels() {
        for pixel_bytes in [2, 3, 6, 12] {
            let pixel = |p: u8| (0..pixel_bytes as u8).map(move |b| p * 16 + b);
            let mut row: Vec<u8> = [1, 2, 3].into_iter().flat_map(pixel).collect();
            mirror(&mut row, pixel_bytes);
            let expected: Vec<u8> = [3, 2, 1].into_iter().flat_map(pixel).collect();
            assert_eq!(row, expected);
        }
    }

    #[test]
    fn about_p_of_the_elements_are_mirrored() {
        let flipped = |p: f64| {
            let flip = Flip { fields: ImageFields::one("image"), p };
            let schema = FieldSchema::fixed(FieldDType::U8, [2, 2, 3]);
            let kernel = flip.kernel(&KernelInput::new(Some(&schema), &NoAssets)).unwrap();
            let Kernel::InPlace(kernel) = kernel else { panic!("it is not in place") };
            let one = |record| {
                let record = RecordKey { file: 0, record };
                let key = DrawKey { seed: 0, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 };
                let mut value = [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4];
                kernel
                    .run(&mut value, [2, 2], &mut KernelScratch::default(), &mut key.draw())
                    .unwrap();
                assert!([(2, 4), (1, 3)].contains(&(value[0], value[6])), "{value:?}");
                value[0] == 2
            };
            (0..1000).filter(|record| one(*record)).count()
        };
        assert_eq!(flipped(0.0), 0);
        assert_eq!(flipped(1.0), 1000);
        assert!((430..570).contains(&flipped(0.5)));
    }
}

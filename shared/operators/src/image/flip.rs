//! `flip`: mirrors an image left to right, with a probability.

use crate::prelude::*;

/// `[h, w, 1 or 3]` of u8, f16, bf16 or f32 -> the same, mirrored left to right with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    #[serde(flatten)]
    pub fields: Fields,
    /// Probability, 0 to 1.
    pub p: f64,
}

impl Define for Flip {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..with_effect("flip", 1, Effect::Mirror) };

    const PARAMETERS: &'static [Parameter] = &with_fields::<11>(
        &[or("p", Kind::Number { min: 0.0, max: 1.0 }, "0.5", "Probability, 0 to 1.")],
        false,
    );

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let p = real::<Self>(params, "p")?;
        Ok(Flip { fields: Fields::parse(params)?, p })
    }
}

impl Operator for Flip {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        self.fields.infer("flip", flow, MOVABLE, |given| Ok(given.schema.clone()))
    }

    fn fields(&self) -> Touched<'_> {
        Touched::Together(&self.fields)
    }

    fn fields_mut(&mut self) -> Option<&mut Fields> {
        Some(&mut self.fields)
    }

    fn does_nothing(&self) -> Option<&'static str> {
        // Boxes are clipped to the image even with p 0.
        (self.p == 0.0 && self.fields.boxes.is_none()).then_some("it mirrors nothing with p 0")
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(Kernel::in_place(kernel::Mirror::new(self, crate::kernels::pixel_bytes(given))))
    }

    #[cfg(feature = "kernels")]
    fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
        boxes::mover(&self.fields, boxes::Geometry::Mirror { p: self.p })
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    //! `flip`: mirrors an image left to right, with a probability.

    use super::*;
    use gristmill_kernel::*;

    /// `[h, w, c]` -> the same, in place.
    #[derive(Debug)]
    pub(crate) struct Mirror {
        p: f64,
        pixel_bytes: usize,
    }

    impl Mirror {
        pub(crate) fn new(op: &Flip, pixel_bytes: usize) -> Self {
            Mirror { p: op.p, pixel_bytes }
        }
    }

    impl InPlace for Mirror {
        fn run(
            &self,
            value: &mut [u8],
            [_, width]: [usize; 2],
            _: &mut Tools,
            draw: &mut Draw,
        ) -> Result<(), String> {
            if draw.unit() >= self.p || width < 2 {
                return Ok(());
            }
            for row in value.chunks_exact_mut(width * self.pixel_bytes) {
                // With constant sizes the compiler moves a whole pixel at once.
                match self.pixel_bytes {
                    3 => row.as_chunks_mut::<3>().0.reverse(),
                    6 => row.as_chunks_mut::<6>().0.reverse(),
                    12 => row.as_chunks_mut::<12>().0.reverse(),
                    bytes => {
                        row.reverse();
                        row.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
                    }
                }
            }
            Ok(())
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use gristmill_model::RecordKey;

        fn draw(record: u32) -> Draw {
            let record = RecordKey { file: 0, record };
            DrawKey { seed: 0, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 }.draw()
        }

        #[test]
        fn rows_are_mirrored_by_whole_pixels() {
            for pixel_bytes in [2, 3, 6, 12] {
                let mirror = Mirror { p: 1.0, pixel_bytes };
                let pixel = |p: u8| (0..pixel_bytes as u8).map(move |b| p * 16 + b);
                let mut value: Vec<u8> = [1, 2, 3, 4, 5, 6].into_iter().flat_map(pixel).collect();
                mirror.run(&mut value, [2, 3], &mut Tools::default(), &mut draw(0)).unwrap();
                let expected: Vec<u8> = [3, 2, 1, 6, 5, 4].into_iter().flat_map(pixel).collect();
                assert_eq!(value, expected);
            }
        }

        #[test]
        fn about_p_of_the_elements_are_mirrored() {
            let flipped = |p: f64| {
                let mirror = Mirror { p, pixel_bytes: 3 };
                let one = |record| {
                    let mut value = [1, 1, 1, 2, 2, 2];
                    mirror
                        .run(&mut value, [1, 2], &mut Tools::default(), &mut draw(record))
                        .unwrap();
                    value[0] == 2
                };
                (0..1000).filter(|record| one(*record)).count()
            };
            assert_eq!(flipped(0.0), 0);
            assert_eq!(flipped(1.0), 1000);
            assert!((430..570).contains(&flipped(0.5)));
        }
    }
}

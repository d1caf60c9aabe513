//! `gaussian_blur`: blurs an image by a random amount, with a probability.

use crate::prelude::*;

/// Largest kernel.
const MAX_KERNEL: u32 = 255;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` convolved with a
/// Gaussian whose sigma is drawn uniformly. Edges are reflected. As torchvision's `GaussianBlur`: u8 within
/// 1 of torchvision 0.29, f32 within 1e-3. The kernel is truncated beyond three sigmas (f32: four).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GaussianBlur {
    pub field: String,
    /// Width and height of the kernel in pixels, odd.
    pub kernel_size: u32,
    /// Bounds of sigma in pixels. One number sets both.
    pub sigma: [f64; 2],
    /// Probability, 0 to 1.
    pub p: f64,
}

impl OperatorDefinition for GaussianBlur {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..with_effect("gaussian_blur", 1, OperatorEffect::Warp).costs(5_000, 3_000)
    };

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "kernel_size",
            ParameterKind::Whole { min: 1, max: MAX_KERNEL as u64 },
            "Width and height of the kernel in pixels, odd.",
        ),
        or(
            "sigma",
            ParameterKind::List(&ParameterKind::Number { min: 1e-3, max: 100.0 }),
            "[0.1, 2.0]",
            "Bounds of sigma in pixels. Written as one number: always that.",
        ),
        or("p", ParameterKind::Number { min: 0.0, max: 1.0 }, "1.0", "Probability, 0 to 1."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let node = params.require("kernel_size")?;
        let kernel_size = whole::<Self>(params, "kernel_size")?;
        if kernel_size % 2 == 0 {
            let next = kernel_size + 1;
            return Err(node.error(format!(
                "`gaussian_blur` `kernel_size` must be odd, not {kernel_size}; {next} is next"
            )));
        }
        let sigma = interval::<Self>(params, "sigma", |s| [s, s])?;
        let p = real::<Self>(params, "p")?;
        Ok(GaussianBlur { field: params.field()?, kernel_size, sigma, p })
    }
}

impl Operator for GaussianBlur {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.colours("gaussian_blur", &self.field, &[1, 3])?.clone();
        flow.write("gaussian_blur", &self.field, field);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let [low, high] = self.sigma;
        let blur = kernel::GaussianFilter {
            kernel_size: self.kernel_size,
            dtype: given.dtype,
            channels: channels_of(given),
        };
        Ok(sometimes(self.p, move |value, size, tools, draw| {
            blur.apply(draw.between(low, high), value, size, tools)
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel;

//! Random factors with mean 1, each kind from its own stream, so that additional draws of one kind do not
//! change another.

use std::f64::consts::TAU;

/// A stream of factors.
#[derive(Debug, Clone)]
pub struct NoiseStream {
    rng: fastrand::Rng,
    spare: Option<f64>,
}

impl NoiseStream {
    /// The stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        // Neighbouring seeds must not give shifted copies of one stream.
        let mixed =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mut rng = fastrand::Rng::with_seed(mixed);
        rng.u64(..);
        Self { rng, spare: None }
    }

    /// A log-normal factor with mean 1 and relative standard deviation `sigma`.
    pub fn factor(&mut self, sigma: f64) -> f64 {
        if sigma <= 0.0 {
            return 1.0;
        }
        // Variance of the logarithm.
        let variance = sigma.mul_add(sigma, 1.0).ln();
        (variance.sqrt() * self.normal() - variance / 2.0).exp()
    }

    /// An exponentially distributed time with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.f64()).ln()
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.rng.f64()).ln()).sqrt();
        let (sin, cos) = (TAU * self.rng.f64()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_mean_one_and_the_deviation_asked_for() {
        let mut noise = NoiseStream::new(7, 1);
        let drawn: Vec<f64> = (0..20_000).map(|_| noise.factor(0.1)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!((mean - 1.0).abs() < 0.003 && (variance.sqrt() - 0.1).abs() < 0.003);
        assert_eq!(NoiseStream::new(7, 1).factor(0.1), drawn[0], "a seed decides");
        assert_eq!(noise.factor(0.0), 1.0);
    }
}

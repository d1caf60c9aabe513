//! A counter-based random stream keyed by (seed, index). Elements share no state, so an element never
//! depends on the thread that made it or on earlier elements.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): its steps are independent of one another, which lets the
//! processor overlap them; pixels need no better.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One stream of numbers.
pub struct RandomStream {
    state: u64,
}

impl RandomStream {
    /// The stream of element `index` of dataset `seed`.
    pub fn keyed(seed: u64, index: u64) -> Self {
        Self { state: mix(mix(seed ^ GOLDEN).wrapping_add(index)) }
    }

    /// A separate stream, for a loop whose length must not affect later draws.
    pub fn fork(&mut self) -> Self {
        Self { state: mix(self.next()) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform in `0..end`; the bias is at most `end / 2^32`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((self.next() >> 32) * end) >> 32
    }

    /// Uniform in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Uniform in [0, 1), 24 bits.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Uniform in [from, to).
    pub fn range(&mut self, from: f32, to: f32) -> f32 {
        from + (to - from) * self.unit()
    }

    /// A unit vector: a point of the disc, drawn by rejection, scaled to length one.
    pub fn direction(&mut self) -> (f32, f32) {
        loop {
            let (x, y) = (self.range(-1.0, 1.0), self.range(-1.0, 1.0));
            let length = (x * x + y * y).sqrt();
            if (0.1..=1.0).contains(&length) {
                return (x / length, y / length);
            }
        }
    }

    /// Two near-gaussian integers about zero, as f32, with standard deviation 147.8: each the sum of
    /// four random bytes minus its mean.
    #[inline]
    pub fn two_gaussians(&mut self) -> (f32, f32) {
        let bits = self.next();
        let pairs = (bits & 0x00ff_00ff_00ff_00ff) + ((bits >> 8) & 0x00ff_00ff_00ff_00ff);
        let sums = (pairs & 0x0000_ffff_0000_ffff) + ((pairs >> 16) & 0x0000_ffff_0000_ffff);
        ((sums as u32) as f32 - 510.0, ((sums >> 32) as u32) as f32 - 510.0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence_of_splitmix64() {
        let mut random = RandomStream { state: 1_234_567 };
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.next(), random.next()], expected);
    }

    #[test]
    fn gaussians_have_the_stated_moments() {
        let mut random = RandomStream::keyed(1, 2);
        let values: Vec<f64> = (0..50_000)
            .flat_map(|_| <[f32; 2]>::from(random.two_gaussians()))
            .map(f64::from)
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        let deviation = (variance / values.len() as f64).sqrt();
        assert!(mean.abs() < 2.0, "{mean}");
        assert!((deviation - 147.8).abs() < 2.0, "{deviation}");
    }
}

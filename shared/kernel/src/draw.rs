//! Randomness that depends on what is processed, never on when or where.

use gristmill_model::{Epoch, RecordKey};

/// Everything a random operator's draws depend on.
#[derive(Clone, Copy, Debug)]
pub struct DrawKey {
    pub seed: u64,
    pub epoch: Epoch,
    pub record: RecordKey,
    /// Which time the epoch has the record.
    pub repeat: u32,
    /// Which of several elements made of one record.
    pub copy: u32,
    /// The operator's place in the graph as its author wrote it.
    pub ordinal: u32,
}

impl DrawKey {
    /// A fresh stream of numbers.
    #[inline]
    pub fn draw(&self) -> OperatorDraws {
        // One BLAKE3 block: keys that differ in a bit give unrelated streams.
        let mut block = [0; 48];
        block[..16].copy_from_slice(b"gristmill draw 1");
        block[16..24].copy_from_slice(&self.seed.to_le_bytes());
        block[24..32].copy_from_slice(&self.record.packed().to_le_bytes());
        block[32..36].copy_from_slice(&self.epoch.to_le_bytes());
        block[36..40].copy_from_slice(&self.repeat.to_le_bytes());
        block[40..44].copy_from_slice(&self.copy.to_le_bytes());
        block[44..].copy_from_slice(&self.ordinal.to_le_bytes());
        let hash = blake3::hash(&block);
        let (head, _) = hash.as_bytes().split_at(8);
        OperatorDraws {
            state: head.iter().rev().fold(0, |state, byte| state << 8 | u64::from(*byte)),
        }
    }
}

/// The random numbers of one operator on one element. SplitMix64 (Steele, Lea and Flood 2014): a counter and a finaliser, ample for a few draws.
#[derive(Clone, Debug)]
pub struct OperatorDraws {
    state: u64,
}

impl OperatorDraws {
    /// The same numbers for every element.
    pub fn fixed() -> Self {
        OperatorDraws { state: 0 }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, in steps of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` if they are equal.
    #[inline]
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..=most`. Its bias, `most` / 2^64, is beyond measuring.
    #[inline]
    pub fn up_to(&mut self, most: u32) -> u32 {
        let scaled = u128::from(self.next()) * (u128::from(most) + 1);
        (scaled >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: DrawKey = DrawKey {
        seed: 1,
        epoch: 2,
        record: RecordKey { file: 3, record: 4 },
        repeat: 0,
        copy: 0,
        ordinal: 5,
    };

    #[test]
    fn every_part_of_the_key_matters() {
        let base = KEY.draw().next();
        assert_eq!(base, KEY.draw().next());
        let others = [
            DrawKey { seed: 9, ..KEY },
            DrawKey { epoch: 9, ..KEY },
            DrawKey { record: RecordKey { file: 9, record: 4 }, ..KEY },
            DrawKey { record: RecordKey { file: 3, record: 9 }, ..KEY },
            DrawKey { repeat: 9, ..KEY },
            DrawKey { copy: 9, ..KEY },
            DrawKey { ordinal: 9, ..KEY },
        ];
        let mut seen: Vec<u64> = others.map(|key| key.draw().next()).to_vec();
        seen.push(base);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn draws_stay_in_bounds_and_spread() {
        let mut draw = KEY.draw();
        let mut counts = [0; 4];
        for _ in 0..4000 {
            let unit = draw.unit();
            assert!((0.0..1.0).contains(&unit));
            counts[draw.up_to(3) as usize] += 1;
            assert_eq!(draw.up_to(0), 0);
            assert_eq!(draw.between(2.0, 2.0), 2.0);
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}

//! The bytes for which the object of a split counts where memory is bounded.

use crate::splits::SplitPlace;

/// Odd constant of a multiplicative hash.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The sizes by which every bound on memory counts objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObjectSizes {
    /// The bytes that an object has.
    #[default]
    Real,
    /// Sizes from one byte to `most`, drawn from `seed` and the split: for simulations of objects that
    /// are too large to be made.
    Modelled { seed: u64, most: u64 },
}

impl ObjectSizes {
    /// The bytes that count for the object of the split at `place`, which has `object_bytes`.
    pub fn bytes(self, place: SplitPlace, object_bytes: u64) -> u64 {
        match self {
            Self::Modelled { seed, most } if object_bytes > 0 => {
                let split = u64::from(place.epoch) << 32 | u64::from(place.position);
                let drawn = mixed(mixed(seed ^ split.wrapping_mul(MIXER)));
                // As many sizes of each order of magnitude.
                let bits = drawn % (u64::from(most.max(1).ilog2()) + 1);
                ((drawn >> 8) % (1 << bits) + (1 << bits)).min(most.max(1))
            }
            Self::Real | Self::Modelled { .. } => object_bytes,
        }
    }
}

/// A number of which every bit depends on every bit of `number`.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 32).wrapping_mul(MIXER);
    number ^ number >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modelled_objects_have_sizes_of_every_order_of_magnitude() {
        let sizes = ObjectSizes::Modelled { seed: 7, most: 200_000_000 };
        let of = |position| sizes.bytes(SplitPlace::new(1, position), 300);
        let all: Vec<u64> = (0..1_000).map(of).collect();
        assert_eq!(all, (0..1_000).map(of).collect::<Vec<_>>(), "a split has one size");
        assert!(all.iter().all(|bytes| (1..=200_000_000).contains(bytes)));
        for least in [1, 100, 10_000, 1_000_000, 100_000_000] {
            let many = all.iter().filter(|bytes| (least..least * 100).contains(*bytes)).count();
            assert!(many > 20, "{many} from {least} bytes on");
        }
        let other = ObjectSizes::Modelled { seed: 8, most: 200_000_000 };
        assert_ne!(other.bytes(SplitPlace::new(1, 0), 300), of(0));
        let tiny = ObjectSizes::Modelled { seed: 7, most: 1 };
        assert_eq!((tiny.bytes(SplitPlace::default(), 300), of(0) > 0), (1, true));
    }

    #[test]
    fn real_objects_and_absent_ones_count_as_they_are() {
        assert_eq!(ObjectSizes::default().bytes(SplitPlace::default(), 300), 300);
        let sizes = ObjectSizes::Modelled { seed: 7, most: 200 };
        assert_eq!(sizes.bytes(SplitPlace::default(), 0), 0);
    }
}

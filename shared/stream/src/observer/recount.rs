//! Counts arrivals by record key, to prove that nothing was lost and nothing came twice.

use std::collections::BTreeMap;

/// Visits in one epoch: a bit per record and copy.
#[derive(Debug, Default)]
pub struct VisitCounter {
    files: BTreeMap<(u32, u32), Vec<u64>>,
    pub elements: u64,
    pub duplicates: u64,
}

impl VisitCounter {
    /// Counts the `__key__` and `__copy__` tensors of a batch: u64 and u32, little-endian.
    pub fn add(&mut self, keys: &[u8], copies: &[u8]) {
        let (keys, _) = keys.as_chunks::<8>();
        let (copies, _) = copies.as_chunks::<4>();
        for (key, copy) in keys.iter().zip(copies) {
            let key = gristmill_model::RecordKey::unpack(u64::from_le_bytes(*key));
            let words = self.files.entry((key.file, u32::from_le_bytes(*copy))).or_default();
            let (word, bit) = ((key.record / 64) as usize, 1 << (key.record % 64));
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            self.elements += 1;
            if words[word] & bit != 0 {
                self.duplicates += 1;
            }
            words[word] |= bit;
        }
    }

    /// Distinct records seen.
    pub fn distinct(&self) -> u64 {
        self.elements - self.duplicates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_seen() {
        let mut recount = VisitCounter::default();
        let keys: Vec<u8> =
            [0u64, 1 << 32 | 200, 0, 64].iter().flat_map(|key| key.to_le_bytes()).collect();
        recount.add(&keys, &[0; 16]);
        assert_eq!((recount.elements, recount.duplicates, recount.distinct()), (4, 1, 3));
        recount.add(&keys[..8], &1_u32.to_le_bytes());
        assert_eq!(recount.distinct(), 4, "another visit of the same record");
    }
}

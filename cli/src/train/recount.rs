//! Counting what arrives, by record key: the proof that nothing was lost and nothing came twice.

use std::collections::BTreeMap;

/// Keys seen in one epoch: a bit per record.
#[derive(Debug, Default)]
pub struct Recount {
    files: BTreeMap<u32, Vec<u64>>,
    pub elements: u64,
    pub duplicates: u64,
}

impl Recount {
    /// Counts the `__key__` tensor of a batch: u64, little-endian.
    pub fn add(&mut self, keys: &[u8]) {
        let (keys, _) = keys.as_chunks::<8>();
        for key in keys {
            let key = gristmill_types::RecordKey::unpack(u64::from_le_bytes(*key));
            let words = self.files.entry(key.file).or_default();
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
        let mut recount = Recount::default();
        let keys: Vec<u8> =
            [0u64, 1 << 32 | 200, 0, 64].iter().flat_map(|key| key.to_le_bytes()).collect();
        recount.add(&keys);
        assert_eq!((recount.elements, recount.duplicates, recount.distinct()), (4, 1, 3));
    }
}

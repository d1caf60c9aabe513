//! Cached objects of a large split: its parts, and an index of them under the split's key. The index is put
//! last, so that if it exists, all parts do.

use bytes::Bytes;
use gristmill_chunk::crc32c;
use gristmill_model::stored::keys;
use gristmill_ports::MAX_GET_BYTES;

/// First bytes of an index. The sizes of the parts follow, each a little-endian u64, then the CRC-32C of all before.
/// No chunk begins like this.
const MAGIC: &[u8; 8] = b"GMPARTS2";

/// The objects to put for the last parts of a split: the parts `before` and `last`, then the index. `sizes`
/// are those of the parts that are already stored. A single part that can be read at once needs no index.
pub(crate) fn objects(
    key: &str,
    mut sizes: Vec<u64>,
    before: Vec<Vec<u8>>,
    last: Vec<u8>,
) -> Vec<(String, Bytes)> {
    if sizes.is_empty() && before.is_empty() && last.len() as u64 <= MAX_GET_BYTES {
        return vec![(key.to_owned(), last.into())];
    }
    let mut objects = Vec::new();
    for part in before.into_iter().chain([last]) {
        objects.push(object(key, &mut sizes, part));
    }
    let sizes = sizes.iter().flat_map(|bytes| bytes.to_le_bytes());
    let mut index: Vec<u8> = MAGIC.iter().copied().chain(sizes).collect();
    index.extend(crc32c(&index).to_le_bytes());
    objects.push((key.to_owned(), index.into()));
    objects
}

/// The next part with its key; adds its size to `sizes`.
pub(crate) fn object(key: &str, sizes: &mut Vec<u64>, part: Vec<u8>) -> (String, Bytes) {
    let name = keys::cached_part(key, sizes.len());
    sizes.push(part.len() as u64);
    (name, part.into())
}

/// Keys and sizes of the parts, if `object`, stored under `key`, is an index; none if it is the only part. A damaged
/// index is taken for a part, and no chunk either.
pub(crate) fn index_parts(key: &str, object: &[u8]) -> Option<Vec<(String, u64)>> {
    let (index, checksum) = object.split_last_chunk::<4>()?;
    let (sizes, []) = index.strip_prefix(MAGIC)?.as_chunks::<8>() else { return None };
    if crc32c(index) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let part =
        |(at, size): (usize, &[u8; 8])| (keys::cached_part(key, at), u64::from_le_bytes(*size));
    Some(sizes.iter().enumerate().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_the_parts_that_are_put_before_it() {
        let one = objects("k.gmc", Vec::new(), Vec::new(), vec![1, 2]);
        assert_eq!(one, [("k.gmc".to_owned(), Bytes::from_static(&[1, 2]))]);
        assert_eq!(index_parts("k.gmc", &one[0].1), None);
        let mut sizes = Vec::new();
        let first = object("k.gmc", &mut sizes, vec![9; 5]);
        assert_eq!((first.0.as_str(), sizes.as_slice()), ("k.gmc.0000", &[5_u64][..]));
        let rest = objects("k.gmc", sizes, vec![vec![8; 7]], vec![7; 3]);
        let names: Vec<&str> = rest.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(names, ["k.gmc.0001", "k.gmc.0002", "k.gmc"]);
        let parts = index_parts("k.gmc", &rest[2].1).unwrap();
        let expected = [("k.gmc.0000", 5), ("k.gmc.0001", 7), ("k.gmc.0002", 3)];
        assert_eq!(parts, expected.map(|(key, size)| (key.to_owned(), size)));
    }

    #[test]
    fn an_index_of_which_any_byte_is_damaged_or_cut_off_names_no_parts() {
        let stored = objects("k.gmc", vec![5, 6], vec![vec![8; 7]], vec![7; 3]);
        let index = stored.last().unwrap().1.to_vec();
        assert!(index_parts("k.gmc", &index).is_some());
        for at in 0..index.len() {
            assert_eq!(index_parts("k.gmc", &index[..at]), None, "cut at {at}");
            for bit in 0..8 {
                let mut damaged = index.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(index_parts("k.gmc", &damaged), None, "bit {bit} of byte {at}");
            }
        }
    }
}

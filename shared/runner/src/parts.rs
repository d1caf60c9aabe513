//! The cached objects of a large split: parts, and in place of the one object an index of them, which is put
//! last, so that where it is all parts are.

use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::MAX_GET_BYTES;

/// The first bytes of an index; the bytes of each part follow, u64, little-endian. No chunk begins so.
const MAGIC: &[u8; 8] = b"GMPARTS1";

/// The objects that are put for `last` and parts of these sizes before it: the parts that are not put yet, then
/// the index. One part that can be read at once needs none.
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
    objects.push((key.to_owned(), MAGIC.iter().copied().chain(sizes).collect()));
    objects
}

/// The next part, and its key.
pub(crate) fn object(key: &str, sizes: &mut Vec<u64>, part: Vec<u8>) -> (String, Bytes) {
    let name = keys::cached_part(key, sizes.len());
    sizes.push(part.len() as u64);
    (name, part.into())
}

/// Keys and sizes of the parts that `object`, which lies at `key`, is an index of; none if it is the one part.
pub(crate) fn of_index(key: &str, object: &[u8]) -> Option<Vec<(String, u64)>> {
    let sizes = object.strip_prefix(MAGIC)?.as_chunks::<8>().0;
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
        assert_eq!(of_index("k.gmc", &one[0].1), None);
        let mut sizes = Vec::new();
        let first = object("k.gmc", &mut sizes, vec![9; 5]);
        assert_eq!((first.0.as_str(), sizes.as_slice()), ("k.gmc.0000", &[5_u64][..]));
        let rest = objects("k.gmc", sizes, vec![vec![8; 7]], vec![7; 3]);
        let names: Vec<&str> = rest.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(names, ["k.gmc.0001", "k.gmc.0002", "k.gmc"]);
        let parts = of_index("k.gmc", &rest[2].1).unwrap();
        let expected = [("k.gmc.0000", 5), ("k.gmc.0001", 7), ("k.gmc.0002", 3)];
        assert_eq!(parts, expected.map(|(key, size)| (key.to_owned(), size)));
    }
}

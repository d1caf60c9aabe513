//! Parts of opened records, for readers that keep them.

use super::{FileIndex, OpenedRecords};
use crate::lengths::RecordLengths;
use bytes::Bytes;

impl OpenedRecords {
    /// Records `first .. first + n` of these, which have an index of their own; none if they are not all there. Shares
    /// the bytes.
    pub fn part(&self, first: u32, n: u32) -> Option<OpenedRecords> {
        let index = self.index.as_ref()?;
        let range = index.byte_range(first, n)?;
        let data = self.data.slice(range.start as usize..range.end as usize);
        let mut lengths = RecordLengths::new(first, 0);
        index.sizes(first, n).for_each(|bytes| lengths.push(bytes as u32));
        Some(OpenedRecords { data, index: Some(FileIndex::window(lengths)) })
    }

    /// The records of all `parts`, each of which follows the one before and has an index of its own.
    pub fn joined(parts: Vec<OpenedRecords>) -> Option<OpenedRecords> {
        if let [_] = parts.as_slice() {
            return parts.into_iter().next();
        }
        let first = parts.first()?.index.as_ref()?.lengths.first();
        let (mut lengths, mut data) = (RecordLengths::new(first, 0), Vec::new());
        for part in &parts {
            let index = part.index.as_ref()?;
            index.sizes(lengths.end(), u32::MAX).for_each(|bytes| lengths.push(bytes as u32));
            data.extend_from_slice(&part.data);
        }
        Some(OpenedRecords { data: Bytes::from(data), index: Some(FileIndex::window(lengths)) })
    }

    /// About how many bytes of memory they take.
    pub fn memory_bytes(&self) -> usize {
        self.data.len() + self.index.as_ref().map_or(0, FileIndex::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of 1, 2, 3 .. bytes, from number `first` on, each filled with its number.
    fn records(first: u32, n: u32) -> OpenedRecords {
        let (mut lengths, mut data) = (RecordLengths::new(first, 0), Vec::new());
        for number in first..first + n {
            lengths.push(number + 1);
            data.extend(std::iter::repeat_n(number as u8, number as usize + 1));
        }
        OpenedRecords { data: data.into(), index: Some(FileIndex::window(lengths)) }
    }

    fn same(found: &OpenedRecords, expected: &OpenedRecords) -> bool {
        (&found.data, &found.index) == (&expected.data, &expected.index)
    }

    #[test]
    fn parts_are_those_records_alone_and_join_again() {
        let all = records(5, 9);
        for (first, n) in [(5, 9), (5, 1), (13, 1), (7, 4), (9, 0)] {
            assert!(same(&all.part(first, n).unwrap(), &records(first, n)), "{first}, {n}");
        }
        for (first, n) in [(4, 1), (13, 2), (5, 10)] {
            assert!(all.part(first, n).is_none(), "{first}, {n}");
        }
        let parts = [(5, 2), (7, 3), (10, 4)].map(|(first, n)| all.part(first, n).unwrap());
        assert!(same(&OpenedRecords::joined(parts.to_vec()).unwrap(), &all));
        assert!(OpenedRecords::joined(Vec::new()).is_none());
    }
}

//! Assignment of files to the datasets of a zip.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of files of each zipped dataset, in order. If empty, all files belong to one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ZipFileCounts(Vec<u32>);

impl ZipFileCounts {
    /// Datasets of so many files.
    pub fn new(files: Vec<u32>) -> Self {
        match files.len() {
            0 | 1 => Self::default(),
            _ => Self(files),
        }
    }

    /// Whether there is one dataset.
    pub fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of datasets.
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// The dataset that a file belongs to.
    pub fn member_of_file(&self, file: u32) -> usize {
        let mut end = 0_u64;
        let before = self.0.iter().take_while(|&&files| {
            end += u64::from(files);
            end <= u64::from(file)
        });
        before.count()
    }

    /// Divides values of files by dataset; `None` if there are not as many values as files.
    pub fn divide<'a, T>(&self, mut files: &'a [T]) -> Option<Vec<&'a [T]>> {
        if self.is_one() {
            return Some(vec![files]);
        }
        let mut divided = Vec::with_capacity(self.0.len());
        for count in &self.0 {
            let (own, rest) = files.split_at_checked(*count as usize)?;
            divided.push(own);
            files = rest;
        }
        files.is_empty().then_some(divided)
    }
}

/// The part of a dataset's version: empty for one dataset.
impl fmt::Display for ZipFileCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|files| write!(f, " {files}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fingerprint;
    use crate::wire::{Dataset, SourceFile};

    #[test]
    fn files_are_those_of_datasets_one_after_the_other() {
        let members = ZipFileCounts::new(vec![2, 0, 1]);
        assert_eq!((members.count(), members.is_one()), (3, false));
        assert_eq!([0, 1, 2].map(|file| members.member_of_file(file)), [0, 0, 2]);
        assert_eq!(members.divide(&["a", "b", "c"]), Some(vec![&["a", "b"][..], &[], &["c"]]));
        assert_eq!(members.divide(&["a", "b"]), None);
        assert_eq!(members.divide(&["a", "b", "c", "d"]), None);
        assert_eq!(members.to_string(), " 2 0 1");
    }

    #[test]
    fn what_is_stored_of_one_dataset_is_as_before_there_were_several() {
        let file = SourceFile::new("k", 7, "e");
        let lines = format!("jsonl\n{}\n", file.fingerprint("b"));
        let one = Dataset::one("b", vec![file.clone()]);
        let version = Fingerprint::from_content("gristmill dataset v2", lines.as_bytes());
        assert_eq!(one.version("jsonl"), version);
        let stored = r#"{"bucket":"b","files":[{"key":"k","size":7,"etag":"e"}]}"#;
        assert_eq!(serde_json::to_string(&one).unwrap(), stored);
        assert_eq!(serde_json::from_str::<Dataset>(stored).unwrap(), one);
        let members = ZipFileCounts::new(vec![1, 1]);
        let two = Dataset { files: vec![file.clone(), file], members, ..one };
        let stored = serde_json::to_string(&two).unwrap();
        assert!(stored.ends_with(r#","members":[1,1]}"#), "{stored}");
        assert_eq!(serde_json::from_str::<Dataset>(&stored).unwrap(), two);
    }

    #[test]
    fn one_dataset_is_nothing_special() {
        for files in [vec![], vec![7]] {
            let one = ZipFileCounts::new(files);
            assert_eq!(
                (one.count(), one.member_of_file(3), one.to_string()),
                (1, 0, String::new())
            );
            assert_eq!(one.divide(&[1, 2]), Some(vec![&[1, 2][..]]));
        }
    }
}

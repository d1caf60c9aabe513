//! How a dataset is divided into splits, and whether buckets, which are filled within a split, have any effect.

use gristmill_pipeline::Pipeline;

/// How a dataset is divided into splits.
#[derive(Debug, Clone, Copy)]
pub struct DatasetDivision {
    pub records: u64,
    pub files: u64,
    /// Most records of a split.
    pub split_records: u64,
    /// Whether the user gave the number of batches of a split.
    pub is_given: bool,
}

impl DatasetDivision {
    /// Why batches of `pipeline` have mixed lengths despite its buckets, and a remedy; none if buckets work.
    pub fn idle_buckets(&self, pipeline: &Pipeline) -> Option<String> {
        let Self { records, files, split_records, is_given } = *self;
        let (batching, size) = (pipeline.batching(), u64::from(pipeline.batch_size()));
        let boundaries = batching.buckets.as_ref()?.boundaries.len();
        let ends_with_file = pipeline.dataset_ops().is_empty() && !pipeline.source().is_zip();
        let in_file = if ends_with_file { records.div_ceil(files.max(1)) } else { records };
        if in_file.min(split_records) > size {
            return None;
        }
        let (why, remedy) = if records <= size {
            (format!("the dataset has {records} records"), "a smaller `size` helps".to_owned())
        } else if split_records <= size {
            let wanted = batching.batches_together();
            let why = if is_given { "--split-batches says so" } else { "its records are large" };
            (why.to_owned(), format!("`--split-batches {wanted}` helps"))
        } else {
            let why = format!("files have about {in_file} records, and a split ends with its file");
            let blocks = boundaries + 1;
            (
                why,
                format!(
                    "`- shuffle: {{ blocks: {blocks} }}` before it makes splits of several files"
                ),
            )
        };
        Some(format!(
            "`bucket_by_sequence_length` does nothing here: it sorts within a split, and splits are one batch of \
             {size} ({why}): {remedy}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(ops: &str) -> Pipeline {
        let source = "source: { jsonl: x, features: { t: { dtype: i64, shape: [-1] } } }";
        let bucket = "bucket_by_sequence_length: { size: 8, field: t, boundaries: [4, 9] }";
        gristmill_operators::parse(&format!("{source}\nops: [{ops}{bucket}]")).unwrap()
    }

    #[test]
    fn splits_of_one_batch_are_named_with_a_remedy() {
        let said = |ops: &str, division: DatasetDivision| division.idle_buckets(&pipeline(ops));
        let all = DatasetDivision { records: 8000, files: 1, split_records: 96, is_given: false };
        assert_eq!(said("", all), None);
        let few = said("", DatasetDivision { records: 8, ..all }).unwrap();
        assert!(few.contains("has 8 records") && few.contains("smaller `size`"), "{few}");
        let given = said("", DatasetDivision { split_records: 8, is_given: true, ..all }).unwrap();
        assert!(given.contains("--split-batches says so") && given.contains("12"), "{given}");
        let large = said("", DatasetDivision { split_records: 8, ..all }).unwrap();
        assert!(large.contains("records are large"), "{large}");
        let files = DatasetDivision { files: 1000, ..all };
        let small = said("", files).unwrap();
        assert!(small.contains("about 8 records") && small.contains("shuffle"), "{small}");
        assert_eq!(
            said("shuffle: { blocks: 3 }, ", files),
            None,
            "splits go on into the next file"
        );
        let plain =
            "source: { jsonl: x, features: { t: { dtype: i64 } } }\nops: [batch: { size: 8 }]";
        let none = DatasetDivision { records: 1, ..all }
            .idle_buckets(&gristmill_operators::parse(plain).unwrap());
        assert_eq!(none, None);
    }
}

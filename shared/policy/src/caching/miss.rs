//! Explains a cache miss by its differences from the nearest cached prefix.

use super::CachedPrefix;
use gristmill_model::Fingerprint;
use gristmill_pipeline::{CachePoint, DescribedOp, DescribedPrefix, Pipeline};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

#[cfg(test)]
mod tests;

/// Most files named one by one; a rewritten dataset differs in all of them.
const MAX_FILES_NAMED: usize = 10;
/// Digits of a version to show: enough to distinguish two.
const SHOWN_HEX_DIGITS: usize = 12;
/// Longest parameter value to show, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// One file of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceVersion {
    pub key: String,
    /// Identifies its content.
    pub etag: String,
}

/// Everything that enters the fingerprint of a prefix, in comparable form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrefixDescription {
    /// Storage format of records and features read.
    #[serde(default)]
    pub source: Value,
    pub ops: Vec<DescribedOp>,
    pub dataset: Fingerprint,
    /// Files of the dataset, if they were listed; else only the version can be compared.
    #[serde(default)]
    pub files: Vec<SourceVersion>,
    /// Decoder build and architecture.
    pub numerics: String,
    /// Seed and epoch of a random prefix.
    #[serde(default)]
    pub drawn: Option<(u64, u32)>,
}

impl PrefixDescription {
    /// Describes the prefix that ends at `point`.
    pub fn new(
        pipeline: &Pipeline,
        point: &CachePoint,
        dataset: Fingerprint,
        files: Vec<SourceVersion>,
        numerics: &str,
        seed: u64,
    ) -> Self {
        let DescribedPrefix { source, ops, drawn } = pipeline.described_prefix(point, seed);
        PrefixDescription { source, ops, dataset, files, numerics: numerics.into(), drawn }
    }
}

/// One difference: `requested` is the job's value, `cached` the entry's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum PrefixDifference {
    /// The pipeline has an operator that the cached one lacks. Places count from 1.
    OpAdded {
        op: String,
        place: usize,
    },
    OpMissing {
        op: String,
        place: usize,
    },
    Parameter {
        op: String,
        place: usize,
        parameter: String,
        requested: String,
        cached: String,
    },
    OpVersion {
        op: String,
        place: usize,
        requested: u32,
        cached: u32,
    },
    /// A random operator has another position in the author's file, so it draws other numbers.
    OpOrdinal {
        op: String,
        place: usize,
        requested: Option<u32>,
        cached: Option<u32>,
    },
    Source {
        parameter: String,
        requested: String,
        cached: String,
    },
    FileAdded {
        key: String,
    },
    FileMissing {
        key: String,
    },
    FileChanged {
        key: String,
    },
    /// Further files.
    MoreFiles {
        files: usize,
    },
    /// The dataset differs, its files are not listed.
    Dataset {
        requested: Fingerprint,
        cached: Fingerprint,
    },
    Numerics {
        requested: String,
        cached: String,
    },
    Seed {
        requested: u64,
        cached: u64,
    },
    Epoch {
        requested: u32,
        cached: u32,
    },
    /// One prefix is random, the other is not.
    Drawn {
        requested: bool,
    },
}

impl fmt::Display for PrefixDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpAdded { op, place } => write!(f, "op {place} `{op}` is new"),
            Self::OpMissing { op, place } => {
                write!(f, "op {place} `{op}` of the cached prefix is missing")
            }
            Self::Parameter { op, place, parameter, requested, cached } => {
                write!(f, "op {place} `{op}`: {parameter} is {requested}, was {cached}")
            }
            Self::OpVersion { op, place, requested, cached } => {
                write!(f, "op {place} `{op}` has version {requested}, was {cached}")
            }
            Self::OpOrdinal { op, place, requested, cached } => {
                let shown = |ordinal: &Option<u32>| match ordinal {
                    Some(ordinal) => (ordinal + 1).to_string(),
                    None => "none".to_owned(),
                };
                let (requested, cached) = (shown(requested), shown(cached));
                write!(f, "op {place} `{op}` draws as the file's op {requested}, drew as {cached}")
            }
            Self::Source { parameter, requested, cached } => {
                write!(f, "source: {parameter} is {requested}, was {cached}")
            }
            Self::FileAdded { key } => write!(f, "file {key} is new"),
            Self::FileMissing { key } => write!(f, "file {key} is missing"),
            Self::FileChanged { key } => write!(f, "file {key} has changed"),
            Self::MoreFiles { files } => write!(f, "and {files} more files"),
            Self::Dataset { requested, cached } => {
                let short = |version: &Fingerprint| -> String {
                    version.to_string().chars().take(SHOWN_HEX_DIGITS).collect()
                };
                write!(f, "the dataset is version {}, was {}", short(requested), short(cached))
            }
            Self::Numerics { requested, cached } => {
                write!(f, "the workers' numerics class is {requested}, was {cached}")
            }
            Self::Seed { requested, cached } => write!(f, "the seed is {requested}, was {cached}"),
            Self::Epoch { requested, cached } => {
                write!(f, "the epoch is {requested}, was {cached}")
            }
            Self::Drawn { requested: true } => {
                write!(f, "it draws at random, the cached one does not")
            }
            Self::Drawn { requested: false } => write!(f, "it draws nothing, the cached one did"),
        }
    }
}

/// A miss: the nearest entry and the differences. Without differences the entry is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheMiss {
    pub nearest: Fingerprint,
    pub differences: Vec<PrefixDifference>,
}

/// Compares `requested` with every described entry. The one with the fewest differences is the nearest;
/// `None` if there is nothing to compare with.
pub fn explain_miss(requested: &PrefixDescription, entries: &[CachedPrefix]) -> Option<CacheMiss> {
    let misses = entries.iter().filter_map(|entry| {
        let differences = differences(requested, entry.described.as_ref()?);
        Some(CacheMiss { nearest: entry.fingerprint, differences })
    });
    // The fingerprint breaks ties, so that the result is deterministic.
    misses.min_by_key(|miss| (distance(&miss.differences), miss.nearest))
}

/// An added or missing operator is more distant than a changed parameter.
fn distance(differences: &[PrefixDifference]) -> usize {
    let weight = |difference: &PrefixDifference| match difference {
        PrefixDifference::OpAdded { .. } | PrefixDifference::OpMissing { .. } => 2,
        PrefixDifference::MoreFiles { files } => *files,
        _ => 1,
    };
    differences.iter().map(weight).sum()
}

fn differences(requested: &PrefixDescription, cached: &PrefixDescription) -> Vec<PrefixDifference> {
    let mut found = Vec::new();
    parameters(&requested.source, &cached.source, "", &mut |parameter, requested, cached| {
        found.push(PrefixDifference::Source { parameter, requested, cached });
    });
    for (mine, theirs) in align(&requested.ops, &cached.ops) {
        match (mine, theirs) {
            (Some(i), Some(j)) => {
                op_differences(i + 1, &requested.ops[i], &cached.ops[j], &mut found);
            }
            (Some(i), None) => {
                found.push(PrefixDifference::OpAdded {
                    op: requested.ops[i].op.clone(),
                    place: i + 1,
                });
            }
            (None, Some(j)) => {
                found.push(PrefixDifference::OpMissing {
                    op: cached.ops[j].op.clone(),
                    place: j + 1,
                });
            }
            (None, None) => {}
        }
    }
    if requested.dataset != cached.dataset {
        file_differences(requested, cached, &mut found);
    }
    if requested.numerics != cached.numerics {
        let (requested, cached) = (requested.numerics.clone(), cached.numerics.clone());
        found.push(PrefixDifference::Numerics { requested, cached });
    }
    match (requested.drawn, cached.drawn) {
        (Some((seed, epoch)), Some((cached_seed, cached_epoch))) => {
            if seed != cached_seed {
                found.push(PrefixDifference::Seed { requested: seed, cached: cached_seed });
            }
            if epoch != cached_epoch {
                found.push(PrefixDifference::Epoch { requested: epoch, cached: cached_epoch });
            }
        }
        (None, None) => {}
        (drawn, _) => found.push(PrefixDifference::Drawn { requested: drawn.is_some() }),
    }
    found
}

fn op_differences(
    place: usize,
    requested: &DescribedOp,
    cached: &DescribedOp,
    found: &mut Vec<PrefixDifference>,
) {
    let op = || requested.op.clone();
    if requested.version != cached.version {
        let (requested, cached) = (requested.version, cached.version);
        found.push(PrefixDifference::OpVersion { op: op(), place, requested, cached });
    }
    parameters(&requested.params, &cached.params, "", &mut |parameter, requested, cached| {
        found.push(PrefixDifference::Parameter { op: op(), place, parameter, requested, cached });
    });
    if requested.ordinal != cached.ordinal {
        let (requested, cached) = (requested.ordinal, cached.ordinal);
        found.push(PrefixDifference::OpOrdinal { op: op(), place, requested, cached });
    }
}

fn file_differences(
    requested: &PrefixDescription,
    cached: &PrefixDescription,
    found: &mut Vec<PrefixDifference>,
) {
    fn by_key(described: &PrefixDescription) -> BTreeMap<&str, &str> {
        described.files.iter().map(|file| (file.key.as_str(), file.etag.as_str())).collect()
    }
    let (mine, theirs) = (by_key(requested), by_key(cached));
    let mut files = Vec::new();
    if !mine.is_empty() && !theirs.is_empty() {
        for (key, etag) in &mine {
            let key = (*key).to_owned();
            match theirs.get(key.as_str()) {
                None => files.push(PrefixDifference::FileAdded { key }),
                Some(other) if other != etag => files.push(PrefixDifference::FileChanged { key }),
                Some(_) => {}
            }
        }
        let gone = theirs.keys().filter(|key| !mine.contains_key(*key));
        files.extend(gone.map(|key| PrefixDifference::FileMissing { key: (*key).to_owned() }));
    }
    if files.is_empty() {
        let (requested, cached) = (requested.dataset, cached.dataset);
        files.push(PrefixDifference::Dataset { requested, cached });
    }
    let more = files.len().saturating_sub(MAX_FILES_NAMED);
    files.truncate(MAX_FILES_NAMED);
    if more > 0 {
        files.push(PrefixDifference::MoreFiles { files: more });
    }
    found.append(&mut files);
}

/// Reports every leaf that differs between two parameter trees, with its path; a subtree that only one
/// of them has is reported as a whole.
fn parameters(
    requested: &Value,
    cached: &Value,
    path: &str,
    tell: &mut impl FnMut(String, String, String),
) {
    if let (Value::Object(mine), Value::Object(theirs)) = (requested, cached) {
        let keys = mine.keys().chain(theirs.keys().filter(|key| !mine.contains_key(*key)));
        for key in keys {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let (mine, theirs) = (mine.get(key), theirs.get(key));
            let absent = &Value::Null;
            parameters(mine.unwrap_or(absent), theirs.unwrap_or(absent), &below, tell);
        }
    } else if requested != cached {
        let path = if path.is_empty() { "params" } else { path };
        tell(path.to_owned(), shown(requested), shown(cached));
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "not set".to_owned(),
        value => value.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Aligns operators: the longest common subsequence of their names, the rest unpaired, in order.
fn align(requested: &[DescribedOp], cached: &[DescribedOp]) -> Vec<(Option<usize>, Option<usize>)> {
    let (rows, columns) = (requested.len(), cached.len());
    // longest[i][j]: length for requested[i..] and cached[j..].
    let mut longest = vec![vec![0usize; columns + 1]; rows + 1];
    for i in (0..rows).rev() {
        for j in (0..columns).rev() {
            longest[i][j] = if requested[i].op == cached[j].op {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < rows || j < columns {
        if i < rows && j < columns && requested[i].op == cached[j].op {
            pairs.push((Some(i), Some(j)));
            (i, j) = (i + 1, j + 1);
        } else if j == columns || (i < rows && longest[i + 1][j] >= longest[i][j + 1]) {
            pairs.push((Some(i), None));
            i += 1;
        } else {
            pairs.push((None, Some(j)));
            j += 1;
        }
    }
    pairs
}

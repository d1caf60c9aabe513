//! Why a lookup found nothing: what differs from the cached prefix that is nearest.

use super::Entry;
use gristmill_model::Fingerprint;
use gristmill_pipeline::{CachePoint, DescribedOp, DescribedPrefix, Pipeline};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

#[cfg(test)]
mod tests;

/// Most files that are named one by one; a dataset that was written anew differs in all of them.
const MAX_FILES_NAMED: usize = 10;
/// Digits of a version that are shown: enough to tell two apart.
const SHOWN_HEX_DIGITS: usize = 12;
/// Longest value that is shown of a parameter, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// One operator as its fingerprint sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpIdentity {
    pub op: String,
    pub version: u32,
    /// Of canonical JSON: defaults filled in.
    #[serde(default)]
    pub params: Value,
    /// Of random operators only: place in the author's file, which keys what they draw.
    #[serde(default)]
    pub ordinal: Option<u32>,
}

/// One file of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceVersion {
    pub key: String,
    /// What pins its content.
    pub etag: String,
}

/// All that takes part in the fingerprint of a prefix, in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// How records are stored and which features are read.
    #[serde(default)]
    pub source: Value,
    pub ops: Vec<OpIdentity>,
    pub dataset: Fingerprint,
    /// The dataset's files if whoever wrote this listed them; else only the version can be told.
    #[serde(default)]
    pub files: Vec<SourceVersion>,
    /// Decoder build and architecture.
    pub numerics: String,
    /// Seed and epoch that a random prefix was drawn with.
    #[serde(default)]
    pub drawn: Option<(u64, u32)>,
}

impl Described {
    /// What would be stored at `point`.
    pub fn of(
        pipeline: &Pipeline,
        point: &CachePoint,
        dataset: Fingerprint,
        files: Vec<SourceVersion>,
        numerics: &str,
        seed: u64,
    ) -> Self {
        let DescribedPrefix { source, ops, drawn } = pipeline.described_prefix(point, seed);
        let ops = ops.into_iter().map(|op| {
            let DescribedOp { op, version, params, ordinal } = op;
            OpIdentity { op, version, params, ordinal }
        });
        Described { source, ops: ops.collect(), dataset, files, numerics: numerics.into(), drawn }
    }
}

/// One thing that differs: `wanted` is the job's, `cached` the entry's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Difference {
    /// The pipeline has an operator that the cached one has not. Places count from 1.
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
        wanted: String,
        cached: String,
    },
    OpVersion {
        op: String,
        place: usize,
        wanted: u32,
        cached: u32,
    },
    /// A random operator stands elsewhere in the author's file, so that it draws other numbers.
    OpOrdinal {
        op: String,
        place: usize,
        wanted: Option<u32>,
        cached: Option<u32>,
    },
    Source {
        parameter: String,
        wanted: String,
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
    /// Files beyond those named.
    MoreFiles {
        files: usize,
    },
    /// Whose files are not known one by one.
    Dataset {
        wanted: Fingerprint,
        cached: Fingerprint,
    },
    Numerics {
        wanted: String,
        cached: String,
    },
    Seed {
        wanted: u64,
        cached: u64,
    },
    Epoch {
        wanted: u32,
        cached: u32,
    },
    /// One was drawn at random, the other not.
    Drawn {
        wanted: bool,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpAdded { op, place } => write!(f, "op {place} `{op}` is new"),
            Self::OpMissing { op, place } => {
                write!(f, "op {place} `{op}` of the cached one is gone")
            }
            Self::Parameter { op, place, parameter, wanted, cached } => {
                write!(f, "op {place} `{op}`: {parameter} is {wanted}, was {cached}")
            }
            Self::OpVersion { op, place, wanted, cached } => {
                write!(f, "op {place} `{op}` has version {wanted}, was {cached}")
            }
            Self::OpOrdinal { op, place, wanted, cached } => {
                let shown = |ordinal: &Option<u32>| match ordinal {
                    Some(ordinal) => (ordinal + 1).to_string(),
                    None => "none".to_owned(),
                };
                let (wanted, cached) = (shown(wanted), shown(cached));
                write!(f, "op {place} `{op}` draws as the file's op {wanted}, drew as {cached}")
            }
            Self::Source { parameter, wanted, cached } => {
                write!(f, "source: {parameter} is {wanted}, was {cached}")
            }
            Self::FileAdded { key } => write!(f, "file {key} is new"),
            Self::FileMissing { key } => write!(f, "file {key} is gone"),
            Self::FileChanged { key } => write!(f, "file {key} has changed"),
            Self::MoreFiles { files } => write!(f, "and {files} more files"),
            Self::Dataset { wanted, cached } => {
                let short = |version: &Fingerprint| -> String {
                    version.to_string().chars().take(SHOWN_HEX_DIGITS).collect()
                };
                write!(f, "the dataset is version {}, was {}", short(wanted), short(cached))
            }
            Self::Numerics { wanted, cached } => {
                write!(f, "the workers' numerics class is {wanted}, was {cached}")
            }
            Self::Seed { wanted, cached } => write!(f, "the seed is {wanted}, was {cached}"),
            Self::Epoch { wanted, cached } => write!(f, "the epoch is {wanted}, was {cached}"),
            Self::Drawn { wanted: true } => {
                write!(f, "it draws at random, the cached one does not")
            }
            Self::Drawn { wanted: false } => write!(f, "it draws nothing, the cached one did"),
        }
    }
}

/// A miss: the entry that is nearest, and what differs. No difference: the entry is not complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Miss {
    pub nearest: Fingerprint,
    pub differences: Vec<Difference>,
}

/// Compares what is wanted with every entry that is described; the one with the fewest differences is
/// the nearest. None if there is nothing to compare with.
pub fn explain_miss(wanted: &Described, entries: &[Entry]) -> Option<Miss> {
    let misses = entries.iter().filter_map(|entry| {
        let differences = differences(wanted, entry.described.as_ref()?);
        Some(Miss { nearest: entry.fingerprint, differences })
    });
    // Of equally near ones always the same.
    misses.min_by_key(|miss| (distance(&miss.differences), miss.nearest))
}

/// An operator more or less is further away than a parameter of it.
fn distance(differences: &[Difference]) -> usize {
    let weight = |difference: &Difference| match difference {
        Difference::OpAdded { .. } | Difference::OpMissing { .. } => 2,
        Difference::MoreFiles { files } => *files,
        _ => 1,
    };
    differences.iter().map(weight).sum()
}

fn differences(wanted: &Described, cached: &Described) -> Vec<Difference> {
    let mut found = Vec::new();
    parameters(&wanted.source, &cached.source, "", &mut |parameter, wanted, cached| {
        found.push(Difference::Source { parameter, wanted, cached });
    });
    for (mine, theirs) in align(&wanted.ops, &cached.ops) {
        match (mine, theirs) {
            (Some(i), Some(j)) => {
                op_differences(i + 1, &wanted.ops[i], &cached.ops[j], &mut found);
            }
            (Some(i), None) => {
                found.push(Difference::OpAdded { op: wanted.ops[i].op.clone(), place: i + 1 });
            }
            (None, Some(j)) => {
                found.push(Difference::OpMissing { op: cached.ops[j].op.clone(), place: j + 1 });
            }
            (None, None) => {}
        }
    }
    if wanted.dataset != cached.dataset {
        file_differences(wanted, cached, &mut found);
    }
    if wanted.numerics != cached.numerics {
        let (wanted, cached) = (wanted.numerics.clone(), cached.numerics.clone());
        found.push(Difference::Numerics { wanted, cached });
    }
    match (wanted.drawn, cached.drawn) {
        (Some((seed, epoch)), Some((cached_seed, cached_epoch))) => {
            if seed != cached_seed {
                found.push(Difference::Seed { wanted: seed, cached: cached_seed });
            }
            if epoch != cached_epoch {
                found.push(Difference::Epoch { wanted: epoch, cached: cached_epoch });
            }
        }
        (None, None) => {}
        (drawn, _) => found.push(Difference::Drawn { wanted: drawn.is_some() }),
    }
    found
}

fn op_differences(
    place: usize,
    wanted: &OpIdentity,
    cached: &OpIdentity,
    found: &mut Vec<Difference>,
) {
    let op = || wanted.op.clone();
    if wanted.version != cached.version {
        let (wanted, cached) = (wanted.version, cached.version);
        found.push(Difference::OpVersion { op: op(), place, wanted, cached });
    }
    parameters(&wanted.params, &cached.params, "", &mut |parameter, wanted, cached| {
        found.push(Difference::Parameter { op: op(), place, parameter, wanted, cached });
    });
    if wanted.ordinal != cached.ordinal {
        let (wanted, cached) = (wanted.ordinal, cached.ordinal);
        found.push(Difference::OpOrdinal { op: op(), place, wanted, cached });
    }
}

fn file_differences(wanted: &Described, cached: &Described, found: &mut Vec<Difference>) {
    fn by_key(described: &Described) -> BTreeMap<&str, &str> {
        described.files.iter().map(|file| (file.key.as_str(), file.etag.as_str())).collect()
    }
    let (mine, theirs) = (by_key(wanted), by_key(cached));
    let mut files = Vec::new();
    if !mine.is_empty() && !theirs.is_empty() {
        for (key, etag) in &mine {
            let key = (*key).to_owned();
            match theirs.get(key.as_str()) {
                None => files.push(Difference::FileAdded { key }),
                Some(other) if other != etag => files.push(Difference::FileChanged { key }),
                Some(_) => {}
            }
        }
        let gone = theirs.keys().filter(|key| !mine.contains_key(*key));
        files.extend(gone.map(|key| Difference::FileMissing { key: (*key).to_owned() }));
    }
    if files.is_empty() {
        let (wanted, cached) = (wanted.dataset, cached.dataset);
        files.push(Difference::Dataset { wanted, cached });
    }
    let more = files.len().saturating_sub(MAX_FILES_NAMED);
    files.truncate(MAX_FILES_NAMED);
    if more > 0 {
        files.push(Difference::MoreFiles { files: more });
    }
    found.append(&mut files);
}

/// Tells every leaf of two parameter trees that differs, with its path; a tree that only one of them
/// has as a whole.
fn parameters(
    wanted: &Value,
    cached: &Value,
    path: &str,
    tell: &mut impl FnMut(String, String, String),
) {
    if let (Value::Object(mine), Value::Object(theirs)) = (wanted, cached) {
        let keys = mine.keys().chain(theirs.keys().filter(|key| !mine.contains_key(*key)));
        for key in keys {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let (mine, theirs) = (mine.get(key), theirs.get(key));
            let absent = &Value::Null;
            parameters(mine.unwrap_or(absent), theirs.unwrap_or(absent), &below, tell);
        }
    } else if wanted != cached {
        let path = if path.is_empty() { "params" } else { path };
        tell(path.to_owned(), shown(wanted), shown(cached));
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

/// Which operator corresponds to which: the longest common subsequence of their names, the rest on
/// one side only, in order.
fn align(wanted: &[OpIdentity], cached: &[OpIdentity]) -> Vec<(Option<usize>, Option<usize>)> {
    let (rows, columns) = (wanted.len(), cached.len());
    // longest[i][j]: of wanted[i..] and cached[j..].
    let mut longest = vec![vec![0usize; columns + 1]; rows + 1];
    for i in (0..rows).rev() {
        for j in (0..columns).rev() {
            longest[i][j] = match wanted[i].op == cached[j].op {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < rows || j < columns {
        if i < rows && j < columns && wanted[i].op == cached[j].op {
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

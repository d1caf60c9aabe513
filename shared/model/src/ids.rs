//! Identifiers: names people choose, numbers we count with, and opaque byte strings.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Zero-based pass over the dataset.
pub type Epoch = u32;
/// Index in the permutation of split ids of one epoch: the order in which splits are delivered.
pub type Position = u32;
/// Index of a split in dataset order.
pub type SplitId = u32;
/// Index of a bundle: a lease unit of consecutive positions.
pub type BundleIndex = u32;
/// Number of times a bundle has been claimed: strictly increasing; the first claim is attempt 1.
pub type Attempt = u32;

/// A name that is not `[a-z0-9-]{1,N}` starting and ending with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    what: &'static str,
    name: String,
    max: usize,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, name, max } = self;
        let shown: String = name.chars().take(48).collect();
        write!(
            f,
            "{what} {shown:?} is not valid: use 1 to {max} of a-z, 0-9 and '-', \
             starting and ending with a letter or digit"
        )
    }
}

impl std::error::Error for NameError {}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
                let valid = (1..=$max).contains(&name.len())
                    && name.bytes().all(|b| plain(b) || b == b'-')
                    && !name.starts_with('-')
                    && !name.ends_with('-');
                if valid { Ok(Self(name.to_owned())) } else { Err(NameError { what: $what, name: name.to_owned(), max: $max }) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

name!(
    /// The tenant whose keys a call may touch; every table key and object key starts with it.
    Namespace, "namespace", 32
);
name!(
    /// A training job inside a namespace. Jobs of one name share one stream of batches.
    JobName, "job name", 63
);

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let invalid = || format!("{} is {} hex digits", stringify!($name), 2 * $len);
                decode(text).map(Self).ok_or_else(invalid)
            }
        }

        // Text in formats for people (JSON), bytes where every byte is billed (packed items).
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() { String::deserialize(deserializer)?.parse().map_err(de::Error::custom) } else { <[u8; $len]>::deserialize(deserializer).map(Self) }
            }
        }
    };
}

byte_id!(
    /// Random for each worker invocation (a retried event keeps its request id, so that the id
    /// would not do); names the owner of a lease and the objects that it wrote.
    Nonce, 8
);
byte_id!(
    /// BLAKE3 of what determines a result: a pipeline prefix, a dataset version, a job.
    Fingerprint, 32
);

byte_id!(
    /// One run of a training program: the same for all its ranks, and another for each run.
    RunToken, 16
);

impl RunToken {
    /// The token of a run that its launcher calls `name`.
    pub fn from_name(name: &str) -> Self {
        let mut token = [0; 16];
        let mut hasher = blake3::Hasher::new_derive_key("gristmill training run v1");
        hasher.update(name.as_bytes()).finalize_xof().fill(&mut token);
        Self(token)
    }
}

impl Fingerprint {
    /// The fingerprint of `bytes` under a `domain` ("pipeline", "dataset"), so that equal bytes of
    /// different kinds differ.
    pub fn from_content(domain: &str, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(domain);
        hasher.update(bytes);
        Self(*hasher.finalize().as_bytes())
    }
}

/// One invocation of a worker: the worker's number within the job and the platform's request id,
/// joined by a dot. A worker inside a trainer's host has no number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvocationId(pub String);

impl InvocationId {
    /// The invocation of `worker` that the platform calls `request`.
    pub fn new(worker: u32, request: &str) -> Self {
        Self(format!("{worker}.{request}"))
    }

    /// The worker's number within the job, if it has one.
    pub fn worker(&self) -> Option<u32> {
        self.0.split_once('.')?.0.parse().ok()
    }
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_names_its_worker() {
        let id = InvocationId::new(7, "2f1c-9a");
        assert_eq!((id.0.as_str(), id.worker()), ("7.2f1c-9a", Some(7)));
        assert_eq!(InvocationId("local-00ff".into()).worker(), None);
    }

    #[test]
    fn names_accept_only_their_alphabet() {
        assert!("team-a1".parse::<Namespace>().is_ok());
        for bad in ["", "-a", "a-", "A", "a#b", "a/b", "ü", &"x".repeat(33)] {
            assert!(bad.parse::<Namespace>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<JobName>("\"no/slash\"").is_err());
    }

    #[test]
    fn byte_ids_round_trip_as_text() {
        let nonce = Nonce([0, 1, 0xab, 0xff, 5, 6, 7, 8]);
        assert_eq!(nonce.to_string(), "0001abff05060708");
        let json = serde_json::to_string(&nonce).unwrap();
        assert_eq!(serde_json::from_str::<Nonce>(&json).unwrap(), nonce);
        assert!("0001".parse::<Nonce>().is_err());
        assert!("zz01abff05060708".parse::<Nonce>().is_err());
    }

    #[test]
    fn fingerprints_separate_domains() {
        assert_ne!(Fingerprint::from_content("a", b"x"), Fingerprint::from_content("b", b"x"));
    }
}

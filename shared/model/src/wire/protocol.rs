//! Versions of the protocol: those that a peer speaks, and how a message of one is translated to the next.
//!
//! Stack, workers and trainers are upgraded one after the other, and a job keeps the worker version that it began with.
//! So each peer reads the current version and the one before, and answers in the version that it was asked in. The types
//! of this crate are the messages of [`VERSION`]; a `Dialect` says what differs in an older version.
//!
//! To change a message:
//! 1. Add a field with a serde default. Older peers ignore it. No dialect is needed.
//! 2. Anything else, a new variant of an enum included, needs a new [`VERSION`], and a dialect of the one before that
//!    keeps it from older peers. Then write the golden file of the version that was current.

use super::{CallEnvelope, CallRefusal, RefusalKind};
use serde::{Deserialize, Serialize, de::DeserializeOwned, de::Error as _};
use serde_json::{Error, Value};
use std::fmt;

/// The newest version that this build speaks.
pub const VERSION: u32 = 3;
/// The oldest version that this build speaks: the one before the newest.
pub const OLDEST: u32 = VERSION - 1;

/// Advice about a service that is too old for its caller, and about a caller that is too old for its service.
pub const UPGRADE_SERVICE: &str =
    "upgrade the stack first, with scripts/deploy; a service on this machine by starting it again";
/// The remedy for a caller that speaks only older versions.
pub const UPGRADE_CALLER: &str = "upgrade gristmill where the call comes from";

/// The versions of the protocol that a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpokenVersions {
    pub oldest: u32,
    pub newest: u32,
}

impl SpokenVersions {
    /// Those of this build.
    pub const BUILD: Self = Self { oldest: OLDEST, newest: VERSION };

    /// One version alone.
    pub const fn only(version: u32) -> Self {
        Self { oldest: version, newest: version }
    }

    /// Whether `version` is spoken.
    pub const fn includes(self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version that both speak.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (self.includes(newest) && other.includes(newest)).then_some(newest)
    }

    /// The spoken version that is nearest to `version`.
    pub fn nearest(self, version: u32) -> u32 {
        version.min(self.newest).max(self.oldest)
    }

    /// The refusal of a call of `version`, which is not spoken.
    pub fn refuse(self, version: u32) -> CallRefusal {
        let advice = if version > self.newest { UPGRADE_SERVICE } else { UPGRADE_CALLER };
        let kind = RefusalKind::OtherVersion { spoken: self };
        let message = format!(
            "the call has protocol version {version}, this coordinator speaks {self}: {advice}"
        );
        CallRefusal { kind, message }
    }
}

impl Default for SpokenVersions {
    /// Those of a peer that does not say it: releases before version 3 spoke version 2 alone.
    fn default() -> Self {
        Self::only(2)
    }
}

impl fmt::Display for SpokenVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest { write!(f, "{newest}") } else { write!(f, "{oldest} to {newest}") }
    }
}

/// The differences of one version from the next.
struct Dialect {
    /// Translates a message of this version to the next.
    newer: fn(&mut Value),
    /// Translates a message of the next version to this one.
    older: fn(&mut Value),
}

/// The dialects of the versions from [`OLDEST`] on, without [`VERSION`].
const DIALECTS: [Dialect; (VERSION - OLDEST) as usize] =
    [Dialect { newer: |_| {}, older: to_version_2 }];

/// Version 2 has no [`RefusalKind::OtherVersion`].
fn to_version_2(message: &mut Value) {
    if message["reply"] == "refused" && message["kind"].get("other_version").is_some() {
        message["kind"] = "invalid".into();
    }
}

/// The dialects between `version` and [`VERSION`], oldest first. A version that is older than all of them is taken as the
/// oldest, and a newer one as the newest: only refusals of it are written, and those it reads.
fn dialects(version: u32) -> &'static [Dialect] {
    &DIALECTS[SpokenVersions::BUILD.nearest(version).abs_diff(OLDEST) as usize..]
}

/// Writes `message` as `version` has it.
pub fn write(message: &impl Serialize, version: u32) -> Result<Vec<u8>, Error> {
    let dialects = dialects(version);
    if dialects.is_empty() {
        return serde_json::to_vec(message);
    }
    let mut value = serde_json::to_value(message)?;
    dialects.iter().rev().for_each(|dialect| (dialect.older)(&mut value));
    serde_json::to_vec(&value)
}

/// Reads a message that `version` has written.
pub fn read<M: DeserializeOwned>(bytes: &[u8], version: u32) -> Result<M, Error> {
    match dialects(version) {
        [] => serde_json::from_slice(bytes),
        _ => read_value(serde_json::from_slice(bytes)?, version),
    }
}

fn read_value<M: DeserializeOwned>(mut value: Value, version: u32) -> Result<M, Error> {
    dialects(version).iter().for_each(|dialect| (dialect.newer)(&mut value));
    serde_json::from_value(value)
}

/// Reads an event, which says its version. Fails for a version that this build does not speak.
pub fn read_event<M: DeserializeOwned>(event: Value) -> Result<M, Error> {
    let version = event["v"].as_u64().and_then(|version| u32::try_from(version).ok());
    let version = version.ok_or_else(|| Error::custom("the event has no protocol version"))?;
    let spoken = SpokenVersions::BUILD;
    if !spoken.includes(version) {
        return Err(Error::custom(other_event(version, spoken)));
    }
    read_value(event, version)
}

/// The error of an event of `version`, which is not `spoken`.
pub fn other_event(version: u32, spoken: SpokenVersions) -> String {
    format!(
        "the event has protocol version {version}, this function speaks {spoken}: deploy one release in all functions"
    )
}

/// The part of a request that is read first.
#[derive(Deserialize)]
struct Head {
    v: u32,
}

impl CallEnvelope {
    /// Reads a request from a peer that may be of another version. Refuses a version that is not
    /// `spoken`.
    pub fn read(bytes: &[u8], spoken: SpokenVersions) -> Result<Self, CallRefusal> {
        let unreadable = |error: Error| {
            let message = format!("the call cannot be read: {error}");
            CallRefusal { kind: RefusalKind::Invalid, message }
        };
        let Head { v } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if !spoken.includes(v) {
            return Err(spoken.refuse(v));
        }
        read(bytes, v).map_err(unreadable)
    }

    /// The version that a peer said in `bytes`, to answer in; the newest if it said none.
    pub fn version_of(bytes: &[u8]) -> u32 {
        serde_json::from_slice(bytes).map_or(VERSION, |Head { v }| v)
    }
}

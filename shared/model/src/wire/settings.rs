//! Settings of a job that its record keeps as its flags give them. With the feature `flags` the same type
//! is the flags: a new option of this kind is a field here, and the code that follows it.

use crate::wire::{JobBudget, JobSpec};
use crate::{ErrorPolicy, Nonce, Sharding, SkipLimit, Visitation, WorkerRemoval, splits::Cursor};
use OptionMeaning::{OfJob, OfJoiner, OfReader, OfRun};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, num::NonZeroU32};

/// Settings of a job. The documentation of a field is the help of its flag.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "flags", derive(clap::Args))]
pub struct JobSettings {
    /// Additional workers in this process, whose batches are not stored as objects; 1 by default if
    /// the job has no other workers
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_parser = clap::value_parser!(u32).range(0..=256)))]
    pub local_workers: u32,
    /// Batches per split [default: chosen by the pipeline's cost and the size of objects and dataset]
    #[cfg_attr(feature = "flags", arg(long, value_parser = clap::value_parser!(u32).range(1..=16_777_216)))]
    pub split_batches: Option<u32>,
    /// The batches per split of the checkpoint that the job was started from: those of the job, unless others are given.
    #[cfg_attr(feature = "flags", arg(skip))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_split_batches: Option<NonZeroU32>,
    /// Policy for a record that cannot be decoded: fail, skip or quarantine
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "POLICY"))]
    pub on_error: ErrorPolicy,
    /// Records per epoch that --on-error skip or quarantine may leave out before the job fails: a
    /// number, or a share, which allows at least one
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "N|P%"))]
    pub max_skipped: SkipLimit,
    /// Delivery guarantee if the trainer fails and returns: exactly-once, at-most-once or
    /// zero-once-or-more
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "MODE"))]
    pub visitation: Visitation,
    /// Content of an epoch: the dataset once (dynamic), or once per worker (off)
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "MODE"))]
    pub sharding: Sharding,
    /// How a worker that is not wanted any more leaves: after the split at hand (split), or at once
    /// (now), so that another one does that split again
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "WHEN"))]
    #[serde(skip_serializing_if = "WorkerRemoval::finishes_split")]
    pub removal: WorkerRemoval,
}

impl JobSettings {
    /// Batches per split, if anybody asked for a number.
    pub fn asked_split_batches(&self) -> Option<u32> {
        self.split_batches.or(self.resumed_split_batches.map(NonZeroU32::get))
    }
}

/// The treatment of an option that a program gives for a job that exists.
#[derive(Debug, Clone, Copy)]
pub enum OptionMeaning {
    /// Fixed by the job: another value is refused. The function gives the value as text.
    OfJob(fn(&JobSpec) -> String),
    /// Changed for the job by a program that joins: the value as text, and the function that takes it over.
    OfJoiner(fn(&JobSpec) -> String, fn(&mut JobSpec, &JobSpec)),
    /// Belongs to a run of the trainer: all its readers must agree.
    OfRun,
    /// Belongs to the program that is given it.
    OfReader,
}

/// Every option of `gristmill run`, `gristmill-fetcher` and the loaders, by the name of its flag, beside those that name
/// the job and its service. The values of `batch-size` and `data` are compared with the pipeline and the dataset.
pub const OPTIONS: &[(&str, OptionMeaning)] = &[
    ("pipeline", OfJob(|spec| spec.pipeline.clone())),
    ("data", OfJob(|_| String::new())),
    ("batch-size", OfJob(|_| String::new())),
    ("shard", OfJob(|_| String::new())),
    ("shard-by", OfJob(|_| String::new())),
    ("seed", OfJob(|spec| spec.seed.to_string())),
    ("split-batches", OfJob(|spec| or_default(spec.settings.split_batches))),
    ("sharding", OfJob(|spec| spec.settings.sharding.to_string())),
    ("visitation", OfJob(|spec| spec.settings.visitation.to_string())),
    ("workers", OfJoiner(workers, take_workers)),
    ("placement", OfJoiner(placement, take_placement)),
    ("max-workers", OfJoiner(workers, |spec, joiner| spec.workers = joiner.workers)),
    (
        "policy",
        OfJoiner(
            |spec| or_default(spec.policy.clone()),
            |spec, joiner| spec.policy.clone_from(&joiner.policy),
        ),
    ),
    (
        "budget-usd-per-hour",
        OfJoiner(budget, |spec, joiner| spec.budget_workers = joiner.budget_workers),
    ),
    (
        "budget-usd",
        OfJoiner(total_budget, |spec, joiner| {
            let revision = spec.budget.map_or(0, |before| before.revision).saturating_add(1);
            spec.budget = joiner.budget.map(|budget| JobBudget { revision, ..budget });
        }),
    ),
    (
        "compress",
        OfJoiner(|spec| spec.compress.to_string(), |spec, joiner| spec.compress = joiner.compress),
    ),
    (
        "max-skipped",
        OfJoiner(
            |spec| spec.settings.max_skipped.to_string(),
            |spec, joiner| spec.settings.max_skipped = joiner.settings.max_skipped,
        ),
    ),
    (
        "on-error",
        OfJoiner(
            |spec| spec.settings.on_error.to_string(),
            |spec, joiner| spec.settings.on_error = joiner.settings.on_error,
        ),
    ),
    (
        "removal",
        OfJoiner(
            |spec| spec.settings.removal.to_string(),
            |spec, joiner| spec.settings.removal = joiner.settings.removal,
        ),
    ),
    ("epochs", OfRun),
    ("ranks", OfRun),
    ("of", OfRun),
    ("replicas", OfRun),
    ("hosts", OfRun),
    ("tail", OfRun),
    ("run", OfRun),
    ("resume", OfRun),
    ("resize", OfRun),
    ("measure", OfReader),
    ("local-workers", OfReader),
    ("prefetch-mib", OfReader),
    ("patience", OfReader),
    ("report", OfReader),
    ("json", OfReader),
    ("sink", OfReader),
    ("socket", OfReader),
    ("state", OfReader),
    ("step-time", OfReader),
    ("step-cores", OfReader),
    ("chaos", OfReader),
    ("chaos-interval", OfReader),
];

/// Options that only make sense where the scaler decides.
const OF_AUTO: [&str; 2] = ["max-workers", "policy"];

fn or_default(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "default".to_owned(), |value| value.to_string())
}

fn workers(spec: &JobSpec) -> String {
    if spec.autoscale {
        format!("auto, at most {}", spec.workers)
    } else {
        spec.workers.to_string()
    }
}

fn take_workers(spec: &mut JobSpec, joiner: &JobSpec) {
    (spec.workers, spec.autoscale) = (joiner.workers, joiner.autoscale);
    spec.auto_placement &= joiner.autoscale;
}

fn placement(spec: &JobSpec) -> String {
    let (remote, local) = (spec.workers > 0, spec.settings.local_workers > 0);
    if let Some(share) = spec.local_share {
        let local = spec.settings.local_workers;
        return format!("{} remote and {local} local, {share} of the splits", spec.workers);
    }
    let name = match (spec.auto_placement, remote, local) {
        (true, ..) => "auto",
        (false, true, false) => "remote",
        (false, false, _) => "local",
        (false, true, true) => "both",
    };
    name.to_owned()
}

fn take_placement(spec: &mut JobSpec, joiner: &JobSpec) {
    // `--max-workers` is an option of its own: a number that is decided keeps the job's limit.
    if !(spec.autoscale && joiner.autoscale) {
        take_workers(spec, joiner);
    }
    (spec.auto_placement, spec.local_share) = (joiner.auto_placement, joiner.local_share);
    spec.settings.local_workers = joiner.settings.local_workers;
}

fn budget(spec: &JobSpec) -> String {
    spec.budget_workers.map_or_else(|| "none".to_owned(), |n| format!("that of {n} workers"))
}

fn total_budget(spec: &JobSpec) -> String {
    spec.budget.map_or_else(|| "none".to_owned(), |budget| format!("${}", budget.cap_usd()))
}

/// A way in which a registration differs from the job it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecDifference {
    pub field: &'static str,
    pub registered: String,
    pub requested: String,
}

/// An option that a program which joined the job has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionChange {
    pub option: String,
    pub from: String,
    pub to: String,
    /// The first batch that may be made under it: the next one that the trainer's last checkpoint needs.
    pub since: Cursor,
    pub at_ms: u64,
    /// Identifies the call, which may arrive twice.
    pub nonce: Option<Nonce>,
}

/// The options that the caller of a registration gave, by their names; the others take the values of a job that exists.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GivenOptions(Option<BTreeSet<String>>);

impl GivenOptions {
    /// Options that were all given: those of a caller that does not say which.
    pub const ALL: Self = Self(None);

    /// Only the options of these names, such as `split-batches`.
    pub fn only(names: impl IntoIterator<Item = String>) -> Self {
        Self(Some(names.into_iter().collect()))
    }

    /// Whether the option was given.
    pub fn contains(&self, option: &str) -> bool {
        self.0.as_ref().is_none_or(|given| given.contains(option))
    }
}

impl JobSpec {
    /// The options of the job by name, with their values as texts.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        let elsewhere = ["pipeline", "data", "batch-size", "shard", "shard-by", "max-workers"];
        let of_job = OPTIONS.iter().filter(move |(name, _)| !elsewhere.contains(name));
        of_job.filter_map(|(name, meaning)| match meaning {
            OfJob(value) | OfJoiner(value, _) => Some((*name, value(self))),
            OfRun | OfReader => None,
        })
    }

    /// The first of the `given` options of `joiner` that the job fixes to another value. The pipeline and the numerics
    /// class are always compared; without sharding, so are the numbers of workers, which visit the dataset once each.
    pub fn difference(&self, joiner: &Self, given: &GivenOptions) -> Option<SpecDifference> {
        let always = |field: &str| field == "pipeline";
        let fixed = OPTIONS.iter().filter_map(|(field, meaning)| match meaning {
            OfJob(value) => Some((*field, value(self), value(joiner))),
            OfJoiner(value, _) if *field == "workers" && !self.settings.sharding.is_dynamic() => {
                Some((*field, value(self), value(joiner)))
            }
            OfReader if *field == "local-workers" && !self.settings.sharding.is_dynamic() => {
                let of = |spec: &Self| spec.settings.local_workers.to_string();
                Some((*field, of(self), of(joiner)))
            }
            _ => None,
        });
        let numerics = ("numerics class", self.numerics.clone(), joiner.numerics.clone());
        let is_open = self.numerics.is_empty() || joiner.numerics.is_empty();
        let given = fixed.filter(|(field, ..)| always(field) || given.contains(field));
        let mut differing = given
            .chain((!is_open).then_some(numerics))
            .filter(|(_, registered, requested)| registered != requested);
        differing.next().map(|(field, registered, requested)| SpecDifference {
            field,
            registered,
            requested,
        })
    }

    /// This specification with what `joiner` was `given` of the options that a joiner may change, and the
    /// differences. The job goes to the larger number of epochs. Fails for an option that needs
    /// `--workers auto`.
    pub fn joined_by(
        &self,
        joiner: &Self,
        given: &GivenOptions,
    ) -> Result<(Self, Vec<SpecDifference>), String> {
        let mut after = self.clone();
        let mut changes = Vec::new();
        for (field, meaning) in OPTIONS.iter().filter(|(option, _)| given.contains(option)) {
            let OfJoiner(value, take) = meaning else { continue };
            let (registered, asked) = (value(&after), value(joiner));
            if registered == asked {
                continue;
            }
            take(&mut after, joiner);
            if OF_AUTO.contains(field) && !after.autoscale {
                return Err(format!(
                    "--{field} is for `--workers auto`, and the job has {} workers: write both",
                    after.workers
                ));
            }
            changes.push(SpecDifference { field, registered, requested: value(&after) });
        }
        if given.contains("epochs") && joiner.epochs > self.epochs {
            after.epochs = joiner.epochs;
            let (registered, requested) = (self.epochs.to_string(), after.epochs.to_string());
            changes.push(SpecDifference { field: "epochs", registered, requested });
        }
        Ok((after, changes))
    }
}

#[cfg(test)]
mod job_options_tests {
    use super::*;
    use crate::{Compression, ErrorPolicy, Sharding};

    fn only(names: &[&str]) -> GivenOptions {
        GivenOptions::only(names.iter().map(ToString::to_string))
    }

    #[test]
    fn only_what_was_given_is_compared_with_a_job_that_exists() {
        let job = JobSpec { seed: 4, epochs: 5, ..JobSpec::new("p".to_owned()) };
        let joiner = JobSpec { seed: 3, ..job.clone() };
        let differs = |other: &JobSpec, given| job.difference(other, &given).map(|of| of.field);
        assert_eq!(differs(&joiner, only(&[])), None);
        assert_eq!(differs(&joiner, only(&["epochs", "workers"])), None);
        assert_eq!(differs(&joiner, only(&["seed"])), Some("seed"));
        assert_eq!(differs(&joiner, GivenOptions::ALL), Some("seed"));
        let other = JobSpec { pipeline: "q".to_owned(), ..job.clone() };
        assert_eq!(differs(&other, only(&[])), Some("pipeline"), "it is always given");
        let more = JobSpec { workers: 9, ..job.clone() };
        assert_eq!(differs(&more, GivenOptions::ALL), None);
        let mut off = job.clone();
        off.settings.sharding = Sharding::Off;
        let more = JobSpec { workers: 9, ..off.clone() };
        let refused = off.difference(&more, &only(&["workers"])).unwrap();
        assert_eq!(
            (refused.field, &*refused.registered, &*refused.requested),
            ("workers", "1", "9")
        );
    }

    #[test]
    fn a_joiner_changes_what_it_was_given_and_nothing_else() {
        let job = JobSpec { epochs: 5, autoscale: true, workers: 16, ..JobSpec::new("p".into()) };
        let mut joiner =
            JobSpec { workers: 4, epochs: 3, compress: Compression::Zstd, ..job.clone() };
        joiner.settings.on_error = ErrorPolicy::Skip;
        assert_eq!(job.joined_by(&joiner, &only(&["epochs"])).unwrap(), (job.clone(), vec![]));
        let (after, changes) = job.joined_by(&joiner, &only(&["on-error", "max-workers"])).unwrap();
        let expected =
            [("max-workers", "auto, at most 16", "auto, at most 4"), ("on-error", "fail", "skip")];
        let changes = changes.iter().map(|of| (of.field, &*of.registered, &*of.requested));
        assert!(changes.eq(expected));
        assert_eq!((after.workers, after.compress, after.epochs), (4, Compression::Auto, 5));
        let longer = JobSpec { epochs: 9, ..job.clone() };
        assert_eq!(job.joined_by(&longer, &only(&["epochs"])).unwrap().0.epochs, 9);
        let placed = JobSpec { auto_placement: true, ..joiner.clone() };
        let (after, changes) = job.joined_by(&placed, &only(&["placement"])).unwrap();
        assert!(after.auto_placement && after.workers == 16, "{changes:?}");
        let (after, _) = job.joined_by(&placed, &only(&["placement", "max-workers"])).unwrap();
        assert!(after.auto_placement && after.workers == 4, "both are given");
        let fixed = JobSpec { autoscale: false, ..joiner.clone() };
        let (after, _) = after.joined_by(&fixed, &only(&["workers"])).unwrap();
        assert!(!after.auto_placement, "a fixed number of workers leaves nothing to decide");
        let fixed = JobSpec { autoscale: false, ..job };
        assert!(
            fixed.joined_by(&joiner, &only(&["max-workers"])).unwrap_err().contains("write both")
        );
    }
}

//! Flags of programs that start jobs. Each flag has one name, one default and one help text, whichever
//! program takes it.

use crate::{OrderOptions, PlannedWorkers, ShardOptions, service::stack_shape};
use clap::{ArgMatches, Args, Command, FromArgMatches, Parser, ValueEnum, parser::ValueSource};
use gristmill_model::wire::{GivenOptions, JobSettings, JobSpec};
use gristmill_model::{Compression, Epoch, JobName, Sharding};
use gristmill_policy::cost::{PriceList, job_budget};
use gristmill_policy::scaling::{POLICIES, PolicyName};
use std::{collections::BTreeSet, num::NonZeroU32, path::PathBuf, time::Duration};

/// The place of the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ServiceBackend {
    /// On this machine, with its own table and object store
    #[default]
    Local,
    /// On AWS, in the stack that the GRISTMILL_* and AWS_* variables name
    Aws,
}

/// Names a service.
#[derive(Debug, Clone, Args)]
pub struct ServiceOptions {
    /// Location of the functions
    #[arg(long, value_enum, default_value_t = ServiceBackend::Local)]
    pub backend: ServiceBackend,
    /// Endpoint of a running service, as `gristmill up` prints it
    #[arg(long, value_name = "URL", conflicts_with = "state_dir")]
    pub endpoint: Option<String>,
    /// State directory of the service. `gristmill run` and `demo` start a service there, and its
    /// jobs survive restarts
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Describes a job, beside its pipeline.
#[derive(Debug, Clone, Args)]
pub struct JobOptions {
    /// First: options are taken out as they are read.
    #[command(flatten)]
    pub given: GivenOptionNames,
    /// Name of the job to start, or to join if it exists: a-z, 0-9 and '-' [default: a new name]
    #[arg(long)]
    pub job: Option<JobName>,
    /// Dataset to read instead of the pipeline's: a directory, file or glob (also {000..146}),
    /// relative to the current directory, or s3://bucket/prefix. Paths in a pipeline file are
    /// relative to that file
    #[arg(long)]
    pub data: Option<String>,
    /// Passes over the dataset
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub epochs: u32,
    /// Seed of order, augmentation and generated data
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Records per batch [default: the pipeline's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: Option<u32>,
    /// Workers to run while there is work; `auto` adapts their number to the trainer
    #[arg(long, default_value = "2", value_parser = parse_workers, value_name = "N|auto")]
    pub workers: WorkerCount,
    /// Makers of the batches: `auto` follows the trainer's step with the numbers of workers and of
    /// local workers, at most `--local-workers`; `remote` and `local` are one of them alone; of a
    /// file that `gristmill plan --json` printed, both, as many as it says, with its share of local
    /// splits [default: both, as many as `--workers` and `--local-workers` say]
    #[arg(long, value_parser = PlacementRule::parse, value_name = "auto|remote|local|FILE")]
    pub placement: Option<PlacementRule>,
    #[arg(long, value_name = "NAME", default_value_t, help = policy_help())]
    pub policy: PolicyName,
    /// Upper limit of `--workers auto` [default: 16 on this machine, 1000 on AWS]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: Option<u32>,
    /// Dollars that the job may spend on functions, requests, storage and transfer, at list prices,
    /// over all its runs. When they are spent, workers in this process finish; without any the
    /// program ends, and goes on if it is started again with more [default: no limit]
    #[arg(long, value_name = "USD", value_parser = parse_budget)]
    pub budget_usd: Option<f64>,
    /// Dollars per hour that workers may cost at one time [default: no limit]
    #[arg(long, value_name = "USD", value_parser = parse_budget)]
    pub budget_usd_per_hour: Option<f64>,
    #[command(flatten)]
    pub settings: JobSettings,
    #[command(flatten)]
    pub order: OrderOptions,
    #[command(flatten)]
    pub shard: ShardOptions,
    /// Compression of stored objects: none, zstd or auto, which compresses if a worker's network is
    /// the bottleneck [default: the pipeline's `compress`, or auto]
    #[arg(long, value_name = "HOW")]
    pub compress: Option<Compression>,
}

/// How batches are fetched.
#[derive(Debug, Clone, Args)]
pub struct StreamOptions {
    /// Memory for prefetched objects, and as much for splits made by local workers, in MiB. Less than
    /// the work needs costs speed only [default: what the work needs, at most an eighth of the memory]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub prefetch_mib: Option<u64>,
    /// Time for which service and object store may fail before the program ends, such as 90s or 10m
    #[arg(long, default_value = "120s", value_parser = parse_patience)]
    pub patience: Duration,
}

/// How a run is reported.
#[derive(Debug, Clone, Args)]
pub struct ReportOptions {
    /// Write an HTML report of the run: batch times, workers, modes, stalls and cost
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    pub json: bool,
}

/// The makers of the batches of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementRule {
    /// By functions and by idle processors of the trainer's host, as costs least
    Auto,
    /// By functions alone
    Remote,
    /// On the trainer's host alone
    Local,
    /// As a plan says
    Planned(PlannedWorkers),
}

/// How many workers a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerCount {
    Fixed(u32),
    /// As many as the policy decides from the trainer's reports.
    Auto,
}

/// Most workers of a job on this machine unless `--max-workers` says otherwise: each is a process.
const LOCAL_MAX_WORKERS: u32 = 16;
/// The same on AWS: the default limit of concurrent executions of an account.
const AWS_MAX_WORKERS: u32 = 1000;

impl JobOptions {
    /// How many workers the job has, as the placement has it.
    pub(crate) fn worker_count(&self) -> WorkerCount {
        match self.placement {
            Some(PlacementRule::Auto) => WorkerCount::Auto,
            Some(PlacementRule::Local) => WorkerCount::Fixed(0),
            Some(PlacementRule::Planned(planned)) => WorkerCount::Fixed(planned.remote),
            Some(PlacementRule::Remote) | None => self.workers,
        }
    }

    /// Workers, or the most of them.
    pub fn most_workers(&self, backend: ServiceBackend) -> u32 {
        match self.worker_count() {
            WorkerCount::Fixed(workers) => workers,
            WorkerCount::Auto => self.max_workers.unwrap_or(match backend {
                ServiceBackend::Local => LOCAL_MAX_WORKERS,
                ServiceBackend::Aws => AWS_MAX_WORKERS,
            }),
        }
    }

    /// Workers inside this process for a job of so many others: one if nothing else works, and nobody said how many.
    pub(crate) fn own_workers(&self, others: u32) -> u32 {
        let is_given = self.is_given("local-workers");
        match (self.settings.local_workers, self.placement) {
            (_, Some(PlacementRule::Remote)) => 0,
            (_, Some(PlacementRule::Planned(planned))) => planned.local,
            (_, Some(PlacementRule::Auto)) if !is_given => local_workers_beside_trainer(),
            (_, Some(PlacementRule::Local)) if !is_given => own_cores(),
            (0, None) if others == 0 && !is_given => 1,
            (workers, _) => workers,
        }
    }

    /// Workers inside this process for a job that exists; the most of them if its scaler decides.
    pub(crate) fn own_workers_for(&self, spec: &JobSpec) -> u32 {
        if self.placement.is_none() && !self.is_given("local-workers") {
            if spec.local_share.is_some() {
                return spec.settings.local_workers;
            }
            if spec.auto_placement {
                return local_workers_beside_trainer();
            }
        }
        self.own_workers(spec.workers)
    }

    /// Workers that the budget pays for, at the price of the stack's worker.
    pub fn budget_workers(&self) -> Option<u32> {
        Some(stack_shape().affordable(self.budget_usd_per_hour?, &PriceList::default()))
    }

    /// These options for a job that goes on from a checkpoint with splits of so many batches, if they are known: one
    /// that is started has the same, unless others are given.
    #[must_use]
    pub fn resuming(self, split_batches: Option<u32>) -> Self {
        let resumed_split_batches = split_batches.and_then(NonZeroU32::new);
        Self { settings: JobSettings { resumed_split_batches, ..self.settings }, ..self }
    }

    /// `base` with these options, those that take their defaults included.
    pub(crate) fn spec(&self, base: JobSpec, backend: ServiceBackend) -> JobSpec {
        let is_auto = self.worker_count() == WorkerCount::Auto;
        let most = self.most_workers(backend);
        let local_workers = match self.placement {
            Some(_) => self.own_workers(most),
            None => self.settings.local_workers,
        };
        let planned = self.placement.and_then(PlacementRule::planned);
        let policy = is_auto || self.is_given("policy");
        // A limit alone is one of a job that has `auto`.
        let limit = self.max_workers.filter(|_| is_auto || !self.is_given("workers"));
        JobSpec {
            seed: self.seed,
            epochs: self.epochs,
            workers: limit.unwrap_or(most),
            autoscale: is_auto,
            auto_placement: self.placement == Some(PlacementRule::Auto),
            local_share: planned.map(|planned| planned.share),
            policy: policy.then(|| self.policy.to_string()),
            budget_workers: self.budget_workers(),
            budget: self
                .budget_usd
                .map(|usd| job_budget(usd, &stack_shape(), &PriceList::default())),
            settings: JobSettings { local_workers, ..self.settings.clone() },
            compress: self
                .compress
                .or(planned.and_then(|planned| planned.compress))
                .unwrap_or(base.compress),
            ..base
        }
    }

    /// Epochs that the trainer reads, if somebody said so.
    pub(crate) fn own_epochs(&self) -> Option<Epoch> {
        self.is_given("epochs").then_some(self.epochs)
    }

    fn is_given(&self, option: &str) -> bool {
        self.given.options().contains(option)
    }

    /// Refuses combinations that cannot work, with one line that says what to change.
    pub fn check(&self) -> Result<(), &'static str> {
        self.check_placement()?;
        let count = self.worker_count();
        if count == WorkerCount::Auto && self.settings.sharding == Sharding::Off {
            return Err(
                "`--sharding off` visits the dataset once for each worker, and `--workers auto` does not say \
                 how many there are: write `--workers N`",
            );
        }
        let has_workers = count != WorkerCount::Fixed(0) || self.settings.local_workers > 0;
        // Other programs may work for a job that has a name.
        if !has_workers && self.job.is_none() && self.given.names("local-workers") {
            return Err(
                "`--workers 0` and `--local-workers 0` leave nobody to work: leave out one of them",
            );
        }
        // A job that exists may have `auto`.
        let is_new = self.job.is_none() || self.is_given("workers");
        if self.budget_workers() == Some(0) {
            return Err(
                "`--budget-usd-per-hour` is less than a worker of the stack costs in an hour, 0.083 at 1,769 MB of \
                 arm64: give more",
            );
        }
        if count == WorkerCount::Auto || !is_new {
            Ok(())
        } else if self.policy != PolicyName::default() {
            Err("`--policy` decides the number of `--workers auto`: write both")
        } else if self.max_workers.is_some() {
            Err("`--max-workers` limits `--workers auto`: write both")
        } else {
            Ok(())
        }
    }
}

impl JobOptions {
    /// Refuses numbers of workers that contradict the placement.
    fn check_placement(&self) -> Result<(), &'static str> {
        let (of_workers, of_local) = (self.given.names("workers"), self.settings.local_workers > 0);
        match self.placement {
            Some(PlacementRule::Auto) if of_workers && self.workers != WorkerCount::Auto => Err(
                "`--placement auto` decides the number of workers: leave out `--workers`, and limit them by \
                 `--max-workers`",
            ),
            Some(PlacementRule::Auto) if self.given.names("local-workers") && !of_local => {
                Err("`--placement auto` has local workers: write `--placement remote` for none")
            }
            Some(PlacementRule::Local) if of_workers => {
                Err("`--placement local` has no workers but local ones: leave out `--workers`")
            }
            Some(PlacementRule::Remote) if of_local => {
                Err("`--placement remote` has no local workers: leave out `--local-workers`")
            }
            Some(PlacementRule::Planned(_)) if of_workers || self.given.names("local-workers") => {
                Err(
                    "the file of `--placement` has the numbers of workers: leave out `--workers` and `--local-workers`",
                )
            }
            Some(PlacementRule::Remote) if self.workers == WorkerCount::Fixed(0) => {
                Err("`--placement remote` and `--workers 0` leave nobody to work")
            }
            _ => Ok(()),
        }
    }
}

/// Processors that this process may use.
fn own_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

/// Most local workers unless they are given: the trainer needs a processor itself.
fn local_workers_beside_trainer() -> u32 {
    own_cores().saturating_sub(1).max(1)
}

/// Every option with its default.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    service: ServiceOptions,
    #[command(flatten)]
    job: JobOptions,
    #[command(flatten)]
    stream: StreamOptions,
    #[command(flatten)]
    report: ReportOptions,
}

impl Defaults {
    fn get() -> Self {
        Self::parse_from([""])
    }
}

macro_rules! default_from_flags {
    ($($options:ty: $field:ident),*) => {$(
        impl Default for $options {
            /// The defaults of the flags.
            fn default() -> Self {
                Defaults::get().$field
            }
        }
    )*};
}

default_from_flags!(ServiceOptions: service, StreamOptions: stream, ReportOptions: report);

impl Default for JobOptions {
    /// The defaults of the flags, as if all were given.
    fn default() -> Self {
        Self { given: GivenOptionNames::default(), ..Defaults::get().job }
    }
}

/// The help of `--policy`, which lists every policy.
fn policy_help() -> String {
    let line = |policy: &PolicyName| format!("\n- {policy}: {}", policy.about());
    let lines: String = POLICIES.iter().map(line).collect();
    format!("How `--workers auto` decides the number of workers:{lines}")
}

fn parse_workers(text: &str) -> Result<WorkerCount, String> {
    if text == "auto" {
        return Ok(WorkerCount::Auto);
    }
    let workers = text.parse().ok().filter(|workers| *workers <= 1_000).map(WorkerCount::Fixed);
    workers.ok_or_else(|| "give a whole number from 0 to 1000, or auto".to_owned())
}

/// Dollars above 0, such as `0.50`.
pub fn parse_budget(text: &str) -> Result<f64, String> {
    let budget = text.parse().ok().filter(|budget: &f64| budget.is_finite() && *budget > 0.0);
    budget.ok_or_else(|| "give dollars, such as 0.50".to_owned())
}

/// A duration such as `90s` or `10m`, from a second to a week.
fn parse_patience(text: &str) -> Result<Duration, String> {
    let invalid = || format!("`{text}` is not a duration: write 90s or 10m");
    let number = text.trim_end_matches(['s', 'm']);
    let unit = match &text[number.len()..] {
        "s" => 1,
        "m" => 60,
        _ => return Err(invalid()),
    };
    let seconds: u64 = number.parse().map_err(|_| invalid())?;
    match seconds.saturating_mul(unit) {
        seconds @ 1..=604_800 => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("`{text}` is not between 1s and a week")),
    }
}

/// The names of the options that were given, such as `split-batches`; by default all, as of a program that fills in the
/// options itself. It has no options of its own: flatten it before those, which are taken out as they
/// are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GivenOptionNames(Option<BTreeSet<String>>);

impl GivenOptionNames {
    /// The options as a registration has them.
    pub fn options(&self) -> GivenOptions {
        self.0.clone().map_or(GivenOptions::ALL, GivenOptions::only)
    }

    /// Whether a command line names the option.
    pub fn names(&self, option: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains(option))
    }
}

impl FromArgMatches for GivenOptionNames {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&clap::Id| {
            // A group has the name of its type.
            let is_option = !id.as_str().starts_with(char::is_uppercase);
            let source = matches.value_source(id.as_str());
            is_option && source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let given = matches.ids().filter(is_given);
        Ok(Self(Some(given.map(|id| id.as_str().replace('_', "-")).collect())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenOptionNames {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn defaults_are_those_of_the_flags() {
        let job = JobOptions::default();
        assert_eq!((job.epochs, job.workers, job.seed), (3, WorkerCount::Fixed(2), 0));
        assert_eq!(StreamOptions::default().patience, Duration::from_secs(120));
        assert_eq!(ServiceOptions::default().backend, ServiceBackend::Local);
        assert!(!ReportOptions::default().json);
    }

    #[test]
    fn workers_are_a_number_or_auto() {
        assert_eq!(parse_workers("auto"), Ok(WorkerCount::Auto));
        assert_eq!(parse_workers("7"), Ok(WorkerCount::Fixed(7)));
        assert!(parse_workers("1001").is_err() && parse_workers("-1").is_err());
        let auto = JobOptions { workers: WorkerCount::Auto, ..JobOptions::default() };
        assert_eq!(
            (auto.most_workers(ServiceBackend::Local), auto.most_workers(ServiceBackend::Aws)),
            (16, 1000)
        );
    }

    #[test]
    fn combinations_that_cannot_work_are_refused() {
        let settings = JobSettings { sharding: Sharding::Off, ..JobSettings::default() };
        let open = JobOptions { workers: WorkerCount::Auto, settings, ..JobOptions::default() };
        assert!(open.check().unwrap_err().contains("--workers N"));
        let policy = "hpa".parse().unwrap();
        let fixed = JobOptions { policy, ..JobOptions::default() };
        assert!(fixed.check().unwrap_err().contains("--workers auto"));
        assert_eq!(JobOptions { workers: WorkerCount::Auto, ..fixed }.check(), Ok(()));
        assert_eq!(JobOptions::default().check(), Ok(()));
    }

    #[test]
    fn a_process_works_itself_where_nothing_else_does() {
        let read = |flags: &[&str]| Defaults::parse_from([""].iter().chain(flags)).job;
        let own = |flags: &[&str]| {
            let job = read(flags);
            (job.own_workers(job.most_workers(ServiceBackend::Local)), job.check().is_ok())
        };
        assert_eq!(own(&[]), (0, true));
        assert_eq!(own(&["--workers", "0"]), (1, true));
        assert_eq!(own(&["--workers", "0", "--local-workers", "3"]), (3, true));
        assert_eq!(own(&["--workers", "0", "--local-workers", "0"]), (0, false));
        assert_eq!(own(&["--workers", "0", "--local-workers", "0", "--job", "j"]), (0, true));
        assert_eq!(read(&["--job", "j"]).own_workers(0), 1, "as of a job that has none");
    }

    #[test]
    fn a_placement_says_who_works() {
        let spec = |flags: &[&str]| {
            let job = Defaults::parse_from([""].iter().chain(flags)).job;
            let spec = job.spec(JobSpec::new(String::new()), ServiceBackend::Local);
            assert_eq!(job.own_workers_for(&spec), spec.settings.local_workers, "{flags:?}");
            let placed = (spec.workers, spec.settings.local_workers);
            job.check().map(|()| (placed, (spec.autoscale, spec.auto_placement)))
        };
        let (beside, all) = (local_workers_beside_trainer(), own_cores());
        let of = |rule| ["--placement", rule];
        assert_eq!(spec(&of("auto")), Ok(((16, beside), (true, true))));
        assert_eq!(spec(&of("remote")), Ok(((2, 0), (false, false))));
        assert_eq!(spec(&of("local")), Ok(((0, all), (false, false))));
        let with = |rule, more: &[&str]| spec(&[&of(rule), more].concat());
        let limits = ["--max-workers", "5", "--local-workers", "3", "--workers", "auto"];
        assert_eq!(with("auto", &limits), Ok(((5, 3), (true, true))));
        assert_eq!(with("local", &["--local-workers", "3"]), Ok(((0, 3), (false, false))));
        assert_eq!(with("remote", &["--workers", "auto"]), Ok(((16, 0), (true, false))));
        let refused: [(&str, &[&str]); 6] = [
            ("auto", &["--workers", "2"]),
            ("auto", &["--local-workers", "0"]),
            ("auto", &["--sharding", "off"]),
            ("local", &["--workers", "2"]),
            ("remote", &["--local-workers", "2"]),
            ("remote", &["--workers", "0"]),
        ];
        for (rule, more) in refused {
            assert!(with(rule, more).is_err(), "{rule} {more:?}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            &file,
            r#"{"placement": {"remote": 3, "local": 2, "share_local": 0.4, "codec": "zstd-1"}}"#,
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(spec(&of(path)), Ok(((3, 2), (false, false))));
        assert!(with(path, &["--workers", "2"]).is_err());
        let planned = Defaults::parse_from(["", "--placement", path]).job;
        let planned = planned.spec(JobSpec::new(String::new()), ServiceBackend::Local);
        let share = planned.local_share.map(|share| share.to_string());
        assert_eq!((share.as_deref(), planned.compress), (Some("40.0 %"), Compression::Zstd));
        let joined = Defaults::parse_from(["", "--job", "j"]).job;
        assert_eq!(joined.own_workers_for(&planned), 2, "as the job's file says");
        let auto = JobSpec { auto_placement: true, ..JobSpec::new(String::new()) };
        assert_eq!(joined.own_workers_for(&auto), beside, "as of a job that decides");
    }

    #[test]
    fn budgets_are_dollars_above_nothing() {
        let refused = ["0", "-1", "-0", "NaN", "nan", "inf", "1e999", "", "$1", "1 000"];
        assert!(refused.iter().all(|text| parse_budget(text).is_err()));
        assert_eq!(parse_budget("1e-3"), Ok(0.001));
        let of = |flags: &[&str]| Defaults::parse_from([""].iter().chain(flags)).job;
        let hour = |usd: &str| of(&["--budget-usd-per-hour", usd]);
        assert!(hour("0.01").check().is_err() && hour("0.0829").check().is_err());
        for (usd, workers) in [("0.0830", 1), ("0.1658", 1), ("0.1659", 2), ("1e300", u32::MAX)] {
            let job = hour(usd);
            assert_eq!((job.budget_workers(), job.check()), (Some(workers), Ok(())), "{usd}");
        }
        let spec = |job: JobOptions| job.spec(JobSpec::new(String::new()), ServiceBackend::Local);
        assert_eq!(spec(hour("0.09")).most_workers(), 1, "of two");
        assert_eq!((spec(of(&[])).most_workers(), spec(of(&[])).budget), (2, None));
        let budget = spec(of(&["--budget-usd", "2.5"])).budget.unwrap();
        assert_eq!((budget.cap_usd(), budget.worker_ms, budget.revision), (2.5, 23_034, 0));
        let requests = [budget.split, budget.local_split].map(|price| price / 1_000);
        assert_eq!(requests, [9_000, 3_600]);
    }

    #[test]
    fn patience_has_a_unit() {
        assert_eq!(parse_patience("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_patience("10m"), Ok(Duration::from_secs(600)));
        assert!(
            ["90", "s", "0s", "8d", "999999m"].iter().all(|text| parse_patience(text).is_err())
        );
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: GivenOptionNames,
        #[arg(long, default_value_t = 3)]
        epochs: u32,
        #[arg(long)]
        split_batches: Option<u32>,
    }

    #[test]
    fn an_option_is_given_also_with_its_default() {
        let given = |line: &[&str]| -> Vec<String> {
            let line = Line::parse_from(["run"].iter().chain(line));
            assert_eq!((line.epochs, line.split_batches.unwrap_or(2)), (3, 2));
            line.given.0.unwrap().into_iter().collect()
        };
        assert!(given(&[]).is_empty());
        assert_eq!(given(&["--epochs", "3"]), ["epochs"]);
        assert_eq!(given(&["--split-batches", "2"]), ["split-batches"]);
    }
}

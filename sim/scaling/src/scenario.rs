//! A scenario file: the modelled conditions, in base units, their changes, the policy's settings, and the checks.

use crate::{
    HostPlacement, ModelHost,
    read::{ScenarioText, TomlSection, ValueProvenance},
};
use gristmill_model::wire::WorkerMetrics;
use gristmill_policy::scaling::Settings;
use toml::de::{DeTable, DeValue};

/// A scenario as parsed: see `docs/scenarios.md` for every key.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingScenario {
    pub name: String,
    pub about: String,
    /// Conditions in sequence: the first from batch 0, each further one from its batch on.
    pub phases: Vec<ScenarioPhase>,
    pub settings: Settings,
    /// The policy for local workers, and the most of them.
    pub placement: HostPlacement,
    pub max_local: u32,
    /// A number of remote workers that is held, whatever the policy decides.
    pub held: Option<u32>,
    /// Measurements of earlier jobs.
    pub stored: Option<WorkerMetrics>,
    /// Batches delivered in a run.
    pub batches: u64,
    pub prices: ScenarioPrices,
    pub paper: Option<PaperResult>,
    pub provenance: Vec<ValueProvenance>,
    /// Fewest of 100 seeds that must choose well.
    pub at_least: f64,
}

/// Conditions from a batch on.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioPhase {
    pub from_batch: u64,
    pub conditions: ModelConditions,
}

/// Dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScenarioPrices {
    pub usd_per_worker_hour: f64,
    pub accelerator_usd_per_hour: f64,
    pub usd_per_million_requests: f64,
}

impl ScenarioPrices {
    /// Dollars of so many seconds of the trainer and of workers.
    pub fn usd(&self, trainer_s: f64, worker_s: f64) -> f64 {
        (trainer_s * self.accelerator_usd_per_hour + worker_s * self.usd_per_worker_hour) / 3_600.0
    }
}

/// Results in a paper.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperResult {
    pub source: String,
    pub workers: Option<f64>,
}

const SECTIONS: &[&str] = &[
    "trainer", "host", "worker", "data", "limits", "platform", "report", "policy", "run", "prices",
    "change", "paper", "check",
];

/// Most batches of a run: more would take minutes.
const BATCHES_MOST: u64 = 20_000_000;
/// Most workers of a scenario.
const WORKERS_MOST: u64 = 20_000;

impl ScalingScenario {
    /// Reads a scenario; `path` is for errors only.
    pub fn parse(text: &str, path: &str) -> Result<Self, ScenarioError> {
        let source = ScenarioText { text, path };
        let document = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            source.error(at, error.message().lines().collect::<Vec<_>>().join(" "))
        })?;
        Document { source, root: document.get_ref(), provenance: vec![], untagged: vec![] }.read()
    }

    /// Most workers under these conditions, by all limits.
    pub fn most_workers(&self, conditions: &ModelConditions) -> u32 {
        self.settings.cap().0.min(conditions.grantable())
    }
}

struct Document<'d> {
    source: ScenarioText<'d>,
    root: &'d DeTable<'d>,
    provenance: Vec<ValueProvenance>,
    untagged: Vec<String>,
}

impl<'d> Document<'d> {
    fn section(&self, name: &'static str) -> Result<TomlSection<'d>, ScenarioError> {
        let found = self.root.iter().find(|(key, _)| *key.get_ref() == name);
        let Some((key, value)) = found else {
            return Ok(TomlSection::new(self.source, name, 0, None));
        };
        match value.get_ref() {
            DeValue::Table(table) => {
                Ok(TomlSection::new(self.source, name, key.span().start, Some(table)))
            }
            _ => Err(self.source.error(key.span().start, format!("`{name}` must be a table"))),
        }
    }

    fn close(&mut self, section: TomlSection<'_>) -> Result<(), ScenarioError> {
        section.finish()?;
        self.provenance.extend(section.provenance);
        self.untagged.extend(section.untagged);
        Ok(())
    }

    fn read(mut self) -> Result<ScalingScenario, ScenarioError> {
        let mut top = TomlSection::new(self.source, "", 0, Some(self.root));
        let name = top.text("name")?.ok_or_else(|| top.missing("name", "a word or two"))?;
        let about = top.text("about")?.unwrap_or_default();
        top.asked.extend(SECTIONS);
        top.finish()?;
        let mut conditions = self.conditions()?;
        let prices = self.prices()?;
        let (settings, placement, max_local) = self.settings(&conditions, &prices)?;
        let mut run = self.section("run")?;
        let batches = run.count("batches", 1_000..=BATCHES_MOST)?.unwrap_or(40_000);
        self.close(run)?;
        if conditions.window_batches == 0 {
            conditions.window_batches = default_window(&conditions, &settings);
        }
        // As in the service, whose window holds at least two leases.
        let lease = u64::from(conditions.split_batches) * u64::from(conditions.lease_splits);
        let window = (2 * lease).max(u64::from(conditions.clients) + lease);
        if conditions.window_batches < window {
            let message = format!(
                "`data.window_batches` must hold two leases and a batch for each client: {window}"
            );
            return Err(self.source.error(0, message));
        }
        let phases = self.changes(conditions, batches)?;
        let mut check = self.section("check")?;
        let at_least = check.number("at_least", 0.0..=100.0)?.unwrap_or(95.0);
        self.close(check)?;
        let paper = self.paper()?;
        if let (Some(_), Some(key)) = (&paper, self.untagged.iter().find(|key| is_input(key))) {
            let message = format!(
                "`{key}` stands beside a paper's figure: tag it, {{ value = .., published | fitted | assumed = \"where from\" }}"
            );
            return Err(self.source.error(0, message));
        }
        let provenance = self.provenance;
        Ok(ScalingScenario {
            name,
            about,
            phases,
            settings,
            placement,
            max_local,
            held: None,
            stored: None,
            batches,
            prices,
            paper,
            provenance,
            at_least,
        })
    }

    fn conditions(&mut self) -> Result<ModelConditions, ScenarioError> {
        let mut trainer = self.section("trainer")?;
        let host = self.host()?;
        let mut worker = self.section("worker")?;
        let mut data = self.section("data")?;
        let mut limits = self.section("limits")?;
        let mut platform = self.section("platform")?;
        let mut report = self.section("report")?;
        let step_s = trainer
            .positive_seconds("step")?
            .ok_or_else(|| trainer.missing("step", "the trainer's own time for a batch"))?;
        let conditions = ModelConditions {
            step_s,
            host,
            clients: trainer.count("clients", 1..=256)?.unwrap_or(1) as u32,
            step_noise: trainer.number("noise", 0.0..=1.0)?.unwrap_or(0.1),
            ingest_per_s: trainer.rate("ingest")?.unwrap_or(f64::INFINITY),
            compute_s: worker
                .positive_seconds("compute")?
                .ok_or_else(|| worker.missing("compute", "one vCPU's time for a batch"))?,
            worker_noise: worker.number("noise", 0.0..=1.0)?.unwrap_or(0.1),
            vcpus: worker.number("vcpus", 0.1..=64.0)?.unwrap_or(1.0),
            // Sustained rate of a function in each direction, inferred from others' measurements.
            network_per_s: worker.rate("network")?.unwrap_or(71e6),
            cold_start_s: worker.seconds("cold_start")?.unwrap_or(0.2),
            speeds: worker.numbers("slowness", 0.1..=10.0)?.unwrap_or_else(|| vec![1.0]),
            mean_life_s: worker.positive_seconds("mean_life")?.unwrap_or(f64::INFINITY),
            death_notice_s: worker.seconds("death_notice")?.unwrap_or(2.0),
            interference: worker.number("interference", 0.0..=1.0)?.unwrap_or(0.0),
            call_s: worker.seconds("call")?.unwrap_or(0.01),
            lifetime_s: worker.positive_seconds("lifetime")?.unwrap_or(900.0),
            source_bytes: data.bytes("source_batch")?.unwrap_or(0.0),
            batch_bytes: data.bytes("batch")?.unwrap_or(0.0),
            split_batches: data.count("split_batches", 1..=10_000)?.unwrap_or(8) as u32,
            lease_splits: data.count("lease_splits", 1..=8)?.unwrap_or(1) as u32,
            epoch_splits: data.count("epoch_splits", 1..=1_000_000_000)?.unwrap_or(u64::MAX),
            epoch_barrier: data.flag("epoch_barrier")?.unwrap_or(false),
            window_batches: data.count("window_batches", 1..=100_000_000)?.unwrap_or(0),
            source_per_s: limits.rate("source")?.unwrap_or(f64::INFINITY),
            // S3 and DynamoDB: requests per second of one prefix, writes of eight partitions.
            gets_per_s: limits.number("gets_per_s", 0.1..=1e9)?.unwrap_or(5_500.0),
            puts_per_s: limits.number("puts_per_s", 0.1..=1e9)?.unwrap_or(3_500.0),
            table_per_s: limits.number("table_writes_per_s", 0.1..=1e9)?.unwrap_or(4_000.0),
            invoke_delay_s: platform.seconds("invoke_delay")?.unwrap_or(0.05),
            concurrency: platform.count("concurrency", 1..=WORKERS_MOST)?.unwrap_or(WORKERS_MOST)
                as u32,
            others: platform.count("others", 0..=WORKERS_MOST)?.unwrap_or(0) as u32,
            scale_up_per_10s: platform.number("scale_up_per_10s", 1.0..=1e6)?.unwrap_or(1_000.0),
            // A fetcher polls between every 50 ms and every 2 s, or once a batch.
            poll_s: platform.positive_seconds("poll")?.unwrap_or(step_s.clamp(0.05, 2.0)),
            report_batches: report.count("batches", 10..=100_000)?.unwrap_or(100) as u32,
            report_noise: report.number("noise", 0.0..=1.0)?.unwrap_or(0.1),
            mode: 0,
        };
        for section in [trainer, worker, data, limits, platform, report] {
            self.close(section)?;
        }
        Ok(conditions)
    }

    fn settings(
        &mut self,
        conditions: &ModelConditions,
        prices: &ScenarioPrices,
    ) -> Result<(Settings, HostPlacement, u32), ScenarioError> {
        let mut policy = self.section("policy")?;
        let placement = match policy.text("placement")? {
            None => HostPlacement::default(),
            Some(name) => HostPlacement::named(&name).ok_or_else(|| {
                policy.error(format!(
                    "`policy.placement` is `{name}`: choose one of remote, auto, unplanned, pecan, fastflow"
                ))
            })?,
        };
        let max_local = policy.count("max_local", 0..=WORKERS_MOST)?.map_or(u32::MAX, |n| n as u32);
        let defaults = Settings::default();
        let settings = Settings {
            start: policy.count("start", 1..=WORKERS_MOST)?.map_or(defaults.start, |n| n as u32),
            max_workers: policy.count("max_workers", 1..=WORKERS_MOST)?.unwrap_or(5_000) as u32,
            concurrency: conditions.concurrency,
            // The casts saturate.
            budget_workers: policy
                .number("budget_usd_per_hour", 1e-6..=1e9)?
                .map(|budget| (budget / prices.usd_per_worker_hour.max(1e-9)) as u32),
            usd_per_worker_hour: prices.usd_per_worker_hour,
            usd_per_trainer_hour: prices.accelerator_usd_per_hour,
        };
        self.close(policy)?;
        Ok((settings, placement, max_local))
    }

    fn host(&mut self) -> Result<ModelHost, ScenarioError> {
        let mut host = self.section("host")?;
        let read = ModelHost {
            cores: host.number("cores", 0.0..=1_024.0)?.unwrap_or(0.0),
            trainer_cores: host.number("trainer_cores", 0.0..=1_024.0)?.unwrap_or(0.0),
            knee: host.number("knee", 0.01..=1.0)?.unwrap_or(0.9),
            // 2.2 ns a byte, as in a plan.
            ingest_cpu_per_gb: host.number("ingest_cpu_per_gb", 0.0..=1e3)?.unwrap_or(2.2),
            local_speed: host.number("local_speed", 0.01..=100.0)?.unwrap_or(1.0),
        };
        self.close(host)?;
        Ok(read)
    }

    fn prices(&mut self) -> Result<ScenarioPrices, ScenarioError> {
        let mut prices = self.section("prices")?;
        let read = ScenarioPrices {
            // 1,769 MB of an arm function: one vCPU.
            usd_per_worker_hour: prices.number("usd_per_worker_hour", 0.0..=1e6)?.unwrap_or(0.083),
            accelerator_usd_per_hour: prices
                .number("accelerator_usd_per_hour", 0.0..=1e6)?
                .unwrap_or(4.96),
            // A put, two gets, four writes and four reads of the table for each split, on average.
            usd_per_million_requests: prices
                .number("usd_per_million_requests", 0.0..=1e6)?
                .unwrap_or(0.8),
        };
        self.close(prices)?;
        Ok(read)
    }

    fn changes(
        &mut self,
        first: ModelConditions,
        batches: u64,
    ) -> Result<Vec<ScenarioPhase>, ScenarioError> {
        let mut phases = vec![ScenarioPhase { from_batch: 0, conditions: first }];
        let found = self.root.iter().find(|(key, _)| *key.get_ref() == "change");
        let Some((key, value)) = found else { return Ok(phases) };
        let list = value.get_ref().as_array().filter(|list| list.len() <= 16);
        let list = list.ok_or_else(|| {
            let message = "write each change as [[change]], at most 16".to_owned();
            self.source.error(key.span().start, message)
        })?;
        for item in list {
            let at = item.span().start;
            let table = item.get_ref().as_table();
            let mut change = TomlSection::new(self.source, "change", at, table);
            let from_batch = change
                .count("at_batch", 1..=BATCHES_MOST)?
                .ok_or_else(|| change.missing("at_batch", "the batch from which on it holds"))?;
            let before = &phases[phases.len() - 1];
            if from_batch <= before.from_batch || from_batch >= batches {
                let message = format!(
                    "`change.at_batch` must lie after the change before it and before the end ({batches})"
                );
                return Err(change.error(message));
            }
            let conditions = changed(&mut change, &before.conditions)?;
            phases.push(ScenarioPhase { from_batch, conditions });
            self.close(change)?;
        }
        Ok(phases)
    }

    fn paper(&mut self) -> Result<Option<PaperResult>, ScenarioError> {
        let mut section = self.section("paper")?;
        if !section.is_present() {
            return Ok(None);
        }
        let source = section
            .text("source")?
            .ok_or_else(|| section.missing("source", "which paper and figure"))?;
        let workers = section.number("workers", 0.0..=1e6)?;
        section.finish()?;
        Ok(Some(PaperResult { source, workers }))
    }
}

fn changed(
    change: &mut TomlSection<'_>,
    before: &ModelConditions,
) -> Result<ModelConditions, ScenarioError> {
    Ok(ModelConditions {
        step_s: change.positive_seconds("step")?.unwrap_or(before.step_s),
        compute_s: change.positive_seconds("compute")?.unwrap_or(before.compute_s),
        source_bytes: change.bytes("source_batch")?.unwrap_or(before.source_bytes),
        batch_bytes: change.bytes("batch")?.unwrap_or(before.batch_bytes),
        source_per_s: change.rate("source")?.unwrap_or(before.source_per_s),
        ingest_per_s: change.rate("ingest")?.unwrap_or(before.ingest_per_s),
        interference: change.number("interference", 0.0..=1.0)?.unwrap_or(before.interference),
        others: change.count("others", 0..=WORKERS_MOST)?.map_or(before.others, |n| n as u32),
        mean_life_s: change.positive_seconds("mean_life")?.unwrap_or(before.mean_life_s),
        host: ModelHost {
            cores: change.number("host_cores", 0.0..=1_024.0)?.unwrap_or(before.host.cores),
            ..before.host
        },
        mode: change.count("mode", 0..=1_000)?.map_or(before.mode, |n| n as u32),
        ..before.clone()
    })
}

/// Whether a key describes the paper's setup, rather than the simulation's run.
fn is_input(key: &str) -> bool {
    ["trainer.", "host.", "worker.", "data.", "limits."]
        .iter()
        .any(|section| key.starts_with(section))
}

/// Room for four leases of each of twice the workers suggested by the times.
fn default_window(conditions: &ModelConditions, settings: &Settings) -> u64 {
    let most = f64::from(settings.cap().0.min(conditions.grantable()));
    let workers = (2.0 * conditions.need()).ceil().clamp(8.0, most.max(8.0)) as u64;
    4 * workers * u64::from(conditions.split_batches) * u64::from(conditions.lease_splits)
}

/// Conditions of a phase; a change of load makes another. Times are in seconds, sizes in bytes, rates per second; an
/// absent limit is infinite.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConditions {
    /// Clients that train in lockstep, each on its own batch.
    pub clients: u32,
    /// The trainer's own time per batch, and its relative deviation between batches.
    pub step_s: f64,
    pub step_noise: f64,
    pub host: ModelHost,
    /// Receiving rate of the trainer's host.
    pub ingest_per_s: f64,
    /// One vCPU's time per batch, and its relative deviation between splits.
    pub compute_s: f64,
    pub worker_noise: f64,
    pub vcpus: f64,
    /// Network rate of one worker.
    pub network_per_s: f64,
    pub cold_start_s: f64,
    /// Factors on the compute time, one drawn for each environment.
    pub speeds: Vec<f64>,
    /// Mean working time until a worker dies, and time until that is detected.
    pub mean_life_s: f64,
    pub death_notice_s: f64,
    /// Share by which each further worker at work slows the computing of all.
    pub interference: f64,
    /// Overhead of a worker per split: claim and flush.
    pub call_s: f64,
    /// Bytes read and put per batch.
    pub source_bytes: f64,
    pub batch_bytes: f64,
    pub split_batches: u32,
    /// Splits in a lease.
    pub lease_splits: u32,
    /// Splits of an epoch, and whether the next epoch waits until the last is delivered.
    pub epoch_splits: u64,
    pub epoch_barrier: bool,
    /// Batches that workers may be ahead of the trainer.
    pub window_batches: u64,
    pub source_per_s: f64,
    pub gets_per_s: f64,
    pub puts_per_s: f64,
    pub table_per_s: f64,
    pub invoke_delay_s: f64,
    /// Concurrency of the account, and the part used by other jobs.
    pub concurrency: u32,
    pub others: u32,
    /// Environments that a function may add in 10 s.
    pub scale_up_per_10s: f64,
    /// Time limit of a worker.
    pub lifetime_s: f64,
    pub poll_s: f64,
    pub report_batches: u32,
    /// Relative deviation of every measured number in a report.
    pub report_noise: f64,
    pub mode: u32,
}

impl ModelConditions {
    /// Seconds of a single worker per batch, without noise. For mixed speeds the harmonic mean, because faster workers make
    /// more.
    pub fn worker_batch_s(&self) -> f64 {
        let rates: f64 = self.speeds.iter().map(|speed| 1.0 / speed).sum();
        let speed = if rates > 0.0 { self.speeds.len() as f64 / rates } else { 1.0 };
        let network_s = (self.source_bytes + self.batch_bytes) / self.network_per_s;
        let calls_s = 2.0 * self.call_s / f64::from(self.split_batches);
        self.compute_s * speed / self.vcpus + network_s + calls_s
    }

    /// Workers that keep up with the trainer without contention.
    pub fn need(&self) -> f64 {
        self.worker_batch_s() * f64::from(self.clients) / self.step_s
    }

    /// Concurrency available to this job.
    pub fn grantable(&self) -> u32 {
        self.concurrency.saturating_sub(self.others).max(1)
    }

    /// The same conditions without noise.
    pub fn quiet(&self) -> Self {
        Self { step_noise: 0.0, worker_noise: 0.0, report_noise: 0.0, ..self.clone() }
    }
}

/// One line: place, problem and remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub String);

/// Name and text of each, in the order of the table.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    macro_rules! scenarios {
        ($($name:literal),* $(,)?) => {
            &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),*]
        };
    }
    scenarios![
        "cachew-fig11-job1",
        "cachew-fig11-job2",
        "cachew-fig6-resnet",
        "cachew-fig6-simclr",
        "cachew-fig6-simclr-cached",
        "cachew-fig9-retinanet",
        "fastflow-fig9",
        "pecan-fig6-asr",
        "pecan-fig6-resnet-v2-8",
        "pecan-fig6-resnet-v3-8",
        "pecan-fig6-retinanet",
        "pecan-fig6-simclr",
        "pecan-fig7",
        "tfdata-fig10-m4",
        "tfdata-fig8-m3",
        "tfdata-fig8-resnet",
        "tfdata-fig9-m1",
        "budget",
        "cached-mode",
        "clients-ingest",
        "cold-starts",
        "failures",
        "few-splits",
        "heterogeneous",
        "interference",
        "large-3000",
        "large-600",
        "leases",
        "load-doubles",
        "load-halves",
        "mixed-machines-source",
        "network-bound",
        "noisy",
        "one-worker",
        "plain",
        "put-limit",
        "put-limit-clients",
        "slower-workers",
        "source-limit",
        "tiny-splits-tight",
        "throttled",
        "tight-window",
        "trainer-ingest",
        "two-clients",
    ]
}

//! Calls and table units of several fetchers of one run, by their number and that of workers: `gristmill bench readers`.

use crate::{
    deployment::{DeploymentParameters, SimulatedDeployment},
    figures::{ReaderFigures, ScaleFigures},
    modes::{in_deployment, start_workers},
    platform::{FOLLOWING_POLL, LEADING_POLL},
    report::{self, FigureBar, FigureRow},
    table::TableUsage,
    training::{self, BoxedError},
};
use gristmill_model::{
    RunToken,
    splits::{
        Cursor,
        ranks::{RunRanks, TailPolicy},
        readers::{RankRange, poll_every_ms},
        run::TrainingRun,
    },
};
use gristmill_ports::{
    limits::{PARTITION_READS_PER_S, PARTITION_WRITES_PER_S},
    memory::TableUnits,
};
use gristmill_stream::{
    FetchError, Fetcher, FetcherConfig, PrefetchMemory, ServedRanks, StepDelivery, StepStream,
};
use serde_json::json;
use std::{io::Write, num::NonZeroU32, sync::Arc, time::Duration};
use tokio::{
    sync::Barrier,
    task::{JoinSet, LocalSet},
};

/// Bars of calls per second: of all readers but the one that leads together, of all reports. A reader that is
/// alone polls as a trainer of one rank does.
const FOLLOWING_POLLS: f64 = 250.0;
const REPORTS: f64 = 250.0;
const LONE_POLLS: f64 = 20.0;
/// Bar of units per step, in percent of those with the fewest workers.
const FLAT: f64 = 125.0;
/// Batches of a split.
const SPLIT_BATCHES: u32 = 16;
/// Splits that workers can make, for each that the ranks take.
const HEADROOM: f64 = 1.5;
/// Splits for each worker that cover its part of the window.
const WINDOW_SPLITS: u32 = 24;

/// Arguments of the measurement.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct ReaderCostArgs {
    /// Numbers of readers, each of which serves equally many of 256 ranks
    #[arg(long, value_delimiter = ',', value_name = "N,..", default_value = "1,8,64,256", value_parser = divisor)]
    readers: Vec<u32>,
    /// Numbers of workers; together, they are 1.5 times as fast as the ranks
    #[arg(long, value_delimiter = ',', value_name = "N,..", default_value = "10,100,1000", value_parser = clap::value_parser!(u32).range(1..=5_000))]
    workers: Vec<u32>,
    /// Milliseconds of a step, in which each rank takes a batch
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    step_ms: u64,
    /// Virtual seconds to measure
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3_600))]
    seconds: u64,
    /// Print the cost of each kind of call
    #[arg(long)]
    calls: bool,
    /// Seed of latencies
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object and no table
    #[arg(long)]
    json: bool,
}

fn divisor(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(readers) if readers > 0 && RANKS.is_multiple_of(readers) => Ok(readers),
        _ => Err(format!("give divisors of {RANKS}, the number of ranks")),
    }
}

/// Measures and prints to `out`. Returns whether every bar holds.
pub fn run(args: &ReaderCostArgs, out: &mut impl Write) -> Result<bool, BoxedError> {
    let mut rows: Vec<FigureRow> = Vec::new();
    for &readers in &args.readers {
        let first = rows.len();
        for &workers in &args.workers {
            let mut row = measure(args, readers, workers)?;
            if let Some(few) = rows.get(first) {
                row.bars.extend(flat_bars(few, &row));
            }
            if !args.json {
                write!(out, "{}", report::row_text(&row, rows.is_empty(), args.calls))?;
            }
            rows.push(row);
        }
    }
    let holds = rows.iter().all(FigureRow::holds);
    if args.json {
        let result = json!({
            "ranks": RANKS,
            "step_ms": args.step_ms,
            "seed": args.seed,
            "rows": report::rows_json(&rows),
            "holds": holds,
        });
        writeln!(out, "{result}")?;
    } else {
        write!(out, "{}{}", report::worst_text(&rows), report::bars_text(&rows))?;
    }
    Ok(holds)
}

fn measure(args: &ReaderCostArgs, readers: u32, workers: u32) -> Result<FigureRow, BoxedError> {
    let step = Duration::from_millis(args.step_ms);
    let splits_a_second = f64::from(RANKS) / f64::from(SPLIT_BATCHES) / step.as_secs_f64();
    let seconds = (args.seconds + WARM_UP.as_secs()) * 2;
    let split = Duration::from_secs_f64(f64::from(workers) / splits_a_second / HEADROOM);
    let splits = workers * WINDOW_SPLITS + (splits_a_second * seconds as f64) as u32 + 1_000;
    let setting = DeploymentParameters {
        workers,
        split,
        splits,
        split_batches: SPLIT_BATCHES,
        files: 4,
        limits: true,
        seed: args.seed,
        ..DeploymentParameters::default()
    };
    let measured = Duration::from_secs(args.seconds);
    let (figures, deployment) = run_fleet(setting, readers, step, measured)?;
    Ok(row(&deployment, &figures, readers))
}

/// The sum over `readers` of their calls per second.
fn per_second<'a>(
    readers: impl Iterator<Item = (&'a u32, &'a ReaderFigures)>,
    calls: impl Fn(&ReaderFigures) -> f64,
) -> f64 {
    let sum = readers.fold(0.0, |sum, (_, reader)| sum + calls(reader));
    // Without the errors of sums of fractions.
    (sum * 1e6).round() / 1e6
}

const READS_A_STEP: &str = "polls' read units a step";
const WRITES_A_STEP: &str = "polls' write units a step";

fn row(deployment: &SimulatedDeployment, figures: &ScaleFigures, readers: u32) -> FigureRow {
    let (seconds, steps) = (figures.seconds(), figures.steps as f64);
    let mut polls = TableUsage::default();
    for kind in ["poll", LEADING_POLL, FOLLOWING_POLL] {
        figures.calls.get(kind).into_iter().for_each(|call| polls.add(&call.used));
    }
    let (reads, writes) = (polls.read_units as f64, polls.write_units as f64);
    let all = figures.used();
    let of = |first: bool| figures.readers.iter().filter(move |(rank, _)| (**rank == 0) == first);
    let leading = per_second(of(true), |reader| reader.polls.per_second());
    let following = per_second(of(false), |reader| reader.polls.per_second());
    let reports = per_second(figures.readers.iter(), |reader| reader.reports.per_second());
    let TableUnits { reads: most_reads, writes: most_writes } = deployment.items.most_asked();
    let (most_reads, most_writes) = (most_reads as f64, most_writes as f64);
    let mut row = report::plain_row(deployment, figures);
    row.readers = Some(readers);
    row.facts = vec![
        ("readers", f64::from(readers)),
        ("steps a second", steps / seconds),
        ("leading polls a second", leading),
        ("following polls a second", following),
        ("reports a second", reports),
        ("polls' read units a second", reads / seconds),
        ("polls' write units a second", writes / seconds),
        (READS_A_STEP, reads / steps),
        (WRITES_A_STEP, writes / steps),
        ("all read units a second", all.read_units as f64 / seconds),
        ("all write units a second", all.write_units as f64 / seconds),
        ("all read units a step", all.read_units as f64 / steps),
        ("all write units a step", all.write_units as f64 / steps),
        ("most reads of a partition in 1 s", most_reads),
        ("most writes of a partition in 1 s", most_writes),
        ("requests rejected", all.rejected as f64),
    ];
    let at_most = FigureBar::at_most;
    let (reads, writes) = (f64::from(PARTITION_READS_PER_S), f64::from(PARTITION_WRITES_PER_S));
    row.bars = vec![
        match readers {
            1 => at_most("polls a second of a reader that is alone", leading, LONE_POLLS),
            _ => {
                let most = 1_000.0 / poll_every_ms(readers, true) as f64;
                at_most("polls a second of the leading reader", leading, most)
            }
        },
        at_most("polls a second of all followers", following, FOLLOWING_POLLS),
        at_most("reports a second of all readers", reports, REPORTS),
        at_most("most reads of a partition in 1 s", most_reads, reads),
        at_most("most writes of a partition in 1 s", most_writes, writes),
    ];
    row
}

/// Bars of a row against `few`, the row of as many readers with the fewest workers.
fn flat_bars(few: &FigureRow, row: &FigureRow) -> [FigureBar; 2] {
    let bar = |name, of: &str| FigureBar::at_most(name, 100.0 * row.fact(of) / few.fact(of), FLAT);
    [
        bar("% of the read units a step with the fewest workers", READS_A_STEP),
        bar("% of the write units a step with the fewest workers", WRITES_A_STEP),
    ]
}

const RANKS: u32 = 256;
/// Time from the first step to the measured part.
const WARM_UP: Duration = Duration::from_secs(10);
/// Longest wait for workers to make a third of the window before the first step.
const MADE_WITHIN: Duration = Duration::from_secs(900);
/// A third of the window, in splits for each worker.
const THIRD_OF_WINDOW: u64 = 8;
const CHECKPOINT_STEPS: u64 = 50;
/// Memory that an object of these sizes takes in a fetcher.
const OBJECT_BYTES: u64 = 1 << 16;

fn ranks_of(number: u32, readers: u32) -> Result<ServedRanks, BoxedError> {
    let positive = |n| NonZeroU32::new(n).ok_or("no ranks");
    let ranks = RunRanks::new(positive(RANKS)?, Cursor::default(), TailPolicy::Repeat);
    let count = positive(RANKS / readers)?;
    Ok(ServedRanks {
        run: TrainingRun { token: RunToken::from_name("bench"), ranks, epochs: None },
        range: RankRange { first: number * count.get(), count },
        is_successor: false,
        local_workers: 0,
    })
}

/// Runs `readers` whose ranks compute for `step`, until the measured part is over.
fn run_fleet(
    setting: DeploymentParameters,
    readers: u32,
    step: Duration,
    measured: Duration,
) -> Result<(ScaleFigures, Arc<SimulatedDeployment>), BoxedError> {
    let ((), figures, deployment) = in_deployment(setting, async |deployment| {
        start_workers(deployment).await?;
        let (local, together) = (LocalSet::new(), Arc::new(Barrier::new(readers as usize)));
        let mut reading = JoinSet::new();
        for number in 0..readers {
            let (deployment, together) = (Arc::clone(deployment), Arc::clone(&together));
            let own = ranks_of(number, readers)?;
            reading.spawn_local_on(read(deployment, own, step, together), &local);
        }
        let measuring = async {
            window_made(deployment).await;
            deployment.time.sleep(WARM_UP).await;
            training::begin(&mut deployment.figures(), deployment);
            deployment.time.sleep(measured).await;
            deployment.figures().ended = Some(deployment.now());
        };
        let run = async {
            tokio::select! {
                biased;
                Some(ended) = reading.join_next() => Err(match ended? {
                    Ok(()) => "a reader ended before the measurement".into(),
                    Err(error) => error.into(),
                }),
                () = measuring => Ok(()),
            }
        };
        local.run_until(run).await
    })?;
    Ok((figures, deployment))
}

/// Resolves once workers have made a third of the window.
async fn window_made(deployment: &SimulatedDeployment) {
    let third = u64::from(deployment.setting.workers) * THIRD_OF_WINDOW;
    let is_made = || deployment.figures().committed >= third;
    while !is_made() && deployment.now() < MADE_WITHIN {
        deployment.time.sleep(Duration::from_millis(100)).await;
    }
}

fn in_words(error: FetchError) -> String {
    format!("a reader: {error}")
}

async fn read(
    deployment: Arc<SimulatedDeployment>,
    own: ServedRanks,
    step: Duration,
    together: Arc<Barrier>,
) -> Result<(), String> {
    // Two steps of its ranks.
    let objects = own.range.count.get().div_ceil(deployment.setting.split_batches);
    let config = FetcherConfig {
        own: Some(own),
        prefetch: PrefetchMemory::Bytes(2 * u64::from(objects) * OBJECT_BYTES),
        ..training::fetcher_config(&deployment)
    };
    let fetcher = Fetcher::start(training::ports(&deployment), config).await.map_err(in_words)?;
    let mut steps = StepStream::new(fetcher);
    window_made(&deployment).await;
    loop {
        let StepDelivery::Step { step: taken, next, .. } = steps.next().await.map_err(in_words)?
        else {
            return Ok(());
        };
        if together.wait().await.is_leader() {
            let mut figures = deployment.figures();
            figures.steps += u64::from(figures.is_measuring());
        }
        deployment.time.sleep(step).await;
        if taken.number % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1 {
            steps.checkpointed(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ReaderCostArgs,
    }

    #[test]
    fn readers_share_the_ranks_equally() {
        let line = |readers| Line::try_parse_from(["bench", "--readers", readers]);
        assert_eq!(line("1,32").unwrap().args.readers, [1, 32]);
        let error = line("3").unwrap_err().to_string();
        assert!(error.contains("give divisors of 256"), "{error}");
    }

    #[test]
    fn four_readers_keep_the_pace() {
        let line = ["bench", "--readers", "4", "--workers", "10", "--seconds", "5", "--json"];
        let Line { args } = Line::try_parse_from(line).unwrap();
        let mut printed = Vec::new();
        let holds = run(&args, &mut printed).unwrap();
        let printed: serde_json::Value = serde_json::from_slice(&printed).unwrap();
        assert!(holds && printed["holds"] == true, "{printed:#}");
        let facts = &printed["rows"][0]["facts"];
        let fact = |name: &str| facts[name].as_f64().unwrap();
        assert!(fact("steps a second") > 3.0 && fact("leading polls a second") > 1.0, "{facts:#}");
        assert!(fact("following polls a second") > fact("reports a second"), "{facts:#}");
    }
}

//! Simulates one machine in small time steps, to check [`predict_local`]: all runnable processes share the cores
//! evenly, workers take elements one by one, and a batch goes from worker to object store to fetcher to
//! trainer.

use super::super::*;
use fastrand::Rng;
use std::collections::VecDeque;

/// Seconds of a step.
const STEP_S: f64 = 0.001;
/// Elements of a split, which is one batch.
const ELEMENTS: usize = 10;
/// Relative spread of element times.
const SPREAD: f64 = 0.3;

/// Remaining work of a process.
#[derive(Clone, Copy)]
enum Todo {
    /// Seconds of a core.
    Compute(f64),
    /// Seconds.
    Wait(f64),
}

/// A process that does one thing after another.
#[derive(Default)]
struct Process {
    todo: VecDeque<Todo>,
}

impl Process {
    fn computes(&self) -> bool {
        matches!(self.todo.front(), Some(Todo::Compute(_)))
    }

    /// Advances one step, given the share of a core for each computing process.
    fn pass(&mut self, share: f64) {
        let mut left_s = STEP_S;
        while let Some(first) = self.todo.front_mut() {
            let (remaining_s, pace) = match first {
                Todo::Compute(s) => (s, share),
                Todo::Wait(s) => (s, 1.0),
            };
            if *remaining_s > left_s * pace {
                *remaining_s -= left_s * pace;
                return;
            }
            left_s -= *remaining_s / pace;
            self.todo.pop_front();
        }
    }
}

/// All processes, and the progress of splits; each split is one batch.
struct Machine {
    workers: Vec<Process>,
    /// Calls that a worker waits for after a split: the service has a process for each worker.
    calls: Vec<Process>,
    /// Whether a worker has a split.
    holds: Vec<bool>,
    /// Puts and gets of each split, all at once.
    stores: Vec<Process>,
    fetcher: Process,
    trainer: Process,
    steps: bool,
    /// Numbers of splits begun, computed, stored and fetched.
    begun: usize,
    computed: usize,
    stored: usize,
    fetched: usize,
    trained: usize,
}

impl Machine {
    fn new(run: &LocalJob) -> Machine {
        let processes = |count: usize| (0..count).map(|_| Process::default()).collect();
        let workers = run.workers as usize;
        Machine {
            workers: processes(workers),
            calls: processes(workers),
            holds: vec![false; workers],
            stores: processes(run.splits as usize),
            fetcher: Process::default(),
            trainer: Process::default(),
            steps: false,
            begun: 0,
            computed: 0,
            stored: 0,
            fetched: 0,
            trained: 0,
        }
    }

    /// Gives idle workers the next split.
    fn claim(&mut self, run: &LocalJob, costs: &LocalCosts, rng: &mut Rng) {
        let splits = run.splits as f64;
        let elements = splits * ELEMENTS as f64;
        let moved = run.source_bytes + 2.0 * run.delivered_bytes;
        for i in 0..self.workers.len() {
            if !self.workers[i].todo.is_empty() || !self.calls[i].todo.is_empty() {
                continue;
            }
            if std::mem::take(&mut self.holds[i]) {
                let moved_s = moved * costs.service_s_per_byte / splits;
                self.stores[self.computed].todo.push_back(Todo::Compute(moved_s));
                self.computed += 1;
            }
            if self.begun as u64 == run.splits {
                continue;
            }
            (self.begun, self.holds[i]) = (self.begun + 1, true);
            let todo = &mut self.workers[i].todo;
            for _ in 0..ELEMENTS {
                let vary = (1.0 + SPREAD * (2.0 * rng.f64() - 1.0)) / elements;
                todo.extend([Todo::Wait(run.wait_s * vary), Todo::Compute(run.cpu_s * vary)]);
            }
            todo.push_back(Todo::Compute(costs.worker_s_per_split));
            self.calls[i].todo.push_back(Todo::Compute(costs.service_s_per_split));
        }
    }

    /// Passes stored splits to the fetcher, and batches to the trainer.
    fn hand_on(&mut self, run: &LocalJob, costs: &LocalCosts) {
        let bytes = run.delivered_bytes / run.splits as f64;
        let fetch_s = costs.fetcher_s_per_batch + bytes * costs.fetcher_s_per_byte;
        while self.stored < self.computed && self.stores[self.stored].todo.is_empty() {
            self.stored += 1;
            self.fetcher.todo.push_back(Todo::Compute(fetch_s));
        }
        self.fetched = self.stored - self.fetcher.todo.len();
        if self.trainer.todo.is_empty() {
            self.trained += usize::from(std::mem::take(&mut self.steps));
            if self.trained < self.fetched {
                self.steps = true;
                let step = [Todo::Compute(run.step_cpu_s), Todo::Wait(run.step_wait_s)];
                self.trainer.todo.extend(step);
            }
        }
    }

    /// Advances one step; computing processes share the cores evenly.
    fn pass(&mut self, cores: f64) {
        let idle = |worker: &Process| worker.todo.is_empty();
        let workers_and_calls = self.workers.iter_mut().zip(&mut self.calls);
        // A worker's call runs after its computing.
        let at_work =
            workers_and_calls.map(|(worker, call)| if idle(worker) { call } else { worker });
        let stores = self.stores[self.stored..self.computed].iter_mut();
        let others = [&mut self.fetcher, &mut self.trainer];
        let mut all: Vec<&mut Process> = at_work.chain(stores).chain(others).collect();
        let computing = all.iter().filter(|process| process.computes()).count();
        let share = (cores / computing.max(1) as f64).min(1.0);
        all.iter_mut().for_each(|process| process.pass(share));
    }
}

/// Seconds of `run` for all its batches, extrapolated from the pace between its first and last batch.
fn simulate(run: &LocalJob, costs: &LocalCosts, seed: u64) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let mut machine = Machine::new(run);
    let (mut now_s, mut first_s) = (0.0, None);
    while (machine.trained as u64) < run.splits {
        machine.claim(run, costs, &mut rng);
        machine.hand_on(run, costs);
        if machine.trained == 1 {
            first_s.get_or_insert(now_s);
        }
        machine.pass(run.cores);
        now_s += STEP_S;
    }
    let paces = (run.splits - 1) as f64;
    (now_s - first_s.unwrap_or_default()) / paces * run.splits as f64
}

/// Draws a machine and a job from `seed`; any part may be the bottleneck.
fn draw(seed: u64) -> LocalJob {
    let mut rng = Rng::with_seed(seed);
    let between = |rng: &mut Rng, low: f64, high: f64| low * (high / low).powf(rng.f64());
    let splits = 200;
    let per_split = |seconds: f64| seconds * splits as f64;
    LocalJob {
        cores: [1.0, 2.0, 4.0, 8.0][rng.usize(..4)],
        workers: rng.u32(1..10),
        splits,
        batches: splits,
        cpu_s: per_split(between(&mut rng, 0.005, 0.4)),
        wait_s: if rng.bool() { per_split(between(&mut rng, 0.01, 0.5)) } else { 0.0 },
        source_bytes: per_split(between(&mut rng, 1e4, 1e7)),
        delivered_bytes: per_split(between(&mut rng, 1e4, 1e7)),
        step_cpu_s: 0.0,
        step_wait_s: between(&mut rng, 0.001, 0.1),
    }
}

#[test]
fn predictions_hold_on_simulated_machines() {
    let costs = LocalCosts::default();
    let mut bounds = [0; 4];
    let (mut sum, mut worst) = (0.0, 0.0f64);
    let machines = 40;
    for seed in 0..machines {
        let run = draw(seed);
        let estimate = predict_local(&run, &costs);
        bounds[estimate.bound as usize] += 1;
        let simulated_s = simulate(&run, &costs, seed);
        let off = estimate.seconds / simulated_s - 1.0;
        assert!(off.abs() < 0.15, "{seed}: took {simulated_s}, not {estimate:?}\n{run:?}");
        (sum, worst) = (sum + off.abs(), worst.max(off.abs()));
    }
    let mean = sum / machines as f64;
    println!(
        "{machines} machines: {:.1} % off on average, {:.1} % at most; {bounds:?}",
        1e2 * mean,
        1e2 * worst
    );
    assert!(mean < 0.05, "{mean}");
    // Every bound but the fetcher's, which is rare.
    assert!(bounds[..3].iter().all(|count| *count >= 5), "{bounds:?}");
}

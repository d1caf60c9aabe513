//! One machine in small steps of time, to hold [`predict_local`] against: everything that may run shares
//! the cores evenly, workers take elements one by one, and a batch goes from worker to object store to
//! fetcher to trainer.

use super::super::*;
use fastrand::Rng;
use std::collections::VecDeque;

/// Seconds of a step.
const STEP_S: f64 = 0.0005;
/// Elements of a split, which is one batch.
const ELEMENTS: usize = 10;
/// By how much elements differ.
const SPREAD: f64 = 0.3;

/// What remains to be done by somebody.
#[derive(Clone, Copy)]
enum Todo {
    /// Seconds of a core.
    Compute(f64),
    /// Seconds.
    Wait(f64),
}

/// Somebody who does one thing after another.
#[derive(Default)]
struct Process {
    todo: VecDeque<Todo>,
}

impl Process {
    fn computes(&self) -> bool {
        matches!(self.todo.front(), Some(Todo::Compute(_)))
    }

    /// Lets a step pass, given how much of a core whoever computes gets.
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

/// Seconds that `run` takes from its first batch to its last, per batch, times its batches.
fn simulate(run: &LocalRun, costs: &LocalCosts, seed: u64) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let splits = run.splits as usize;
    let elements = (splits * ELEMENTS) as f64;
    let (cpu_s, wait_s) = (run.cpu_s / elements, run.wait_s / elements);
    let moved_s =
        (run.source_bytes + 2.0 * run.delivered_bytes) * costs.service_s_per_byte / splits as f64;
    let fetch_s =
        costs.fetcher_s_per_batch + run.delivered_bytes / splits as f64 * costs.fetcher_s_per_byte;
    let mut workers: Vec<Process> = (0..run.workers).map(|_| Process::default()).collect();
    // The service has a process for each request; a worker waits for its own.
    let mut calls: Vec<Process> = (0..run.workers).map(|_| Process::default()).collect();
    let mut stores: Vec<Process> = (0..splits).map(|_| Process::default()).collect();
    let (mut fetcher, mut trainer) = (Process::default(), Process::default());
    let (mut claimed, mut busy) = (0, vec![false; workers.len()]);
    let (mut now_s, mut first_s, mut trained) = (0.0, 0.0, 0);
    // Batches that have come as far as the object store, the fetcher and the trainer.
    let (mut storing, mut fetching, mut stepping) = (0, 0, false);
    let (mut stored, mut fetched) = (0, 0);
    while trained < splits {
        for i in 0..workers.len() {
            if !workers[i].todo.is_empty() || !calls[i].todo.is_empty() {
                continue;
            }
            if busy[i] {
                busy[i] = false;
                stores[storing].todo.push_back(Todo::Compute(moved_s));
                storing += 1;
            }
            if claimed < splits {
                (claimed, busy[i]) = (claimed + 1, true);
                for _ in 0..ELEMENTS {
                    let vary = 1.0 + SPREAD * (2.0 * rng.f64() - 1.0);
                    workers[i]
                        .todo
                        .extend([Todo::Wait(wait_s * vary), Todo::Compute(cpu_s * vary)]);
                }
                workers[i].todo.push_back(Todo::Compute(costs.worker_s_per_split));
                calls[i].todo.push_back(Todo::Compute(costs.service_s_per_split));
            }
        }
        while stored < storing && stores[stored].todo.is_empty() {
            (stored, fetching) = (stored + 1, fetching + 1);
            fetcher.todo.push_back(Todo::Compute(fetch_s));
        }
        while fetched < fetching && fetcher.todo.len() < fetching - fetched {
            fetched += 1;
        }
        if trainer.todo.is_empty() {
            if stepping {
                (trained, stepping) = (trained + 1, false);
                first_s = if trained == 1 { now_s } else { first_s };
            }
            if trained < fetched {
                stepping = true;
                trainer.todo.extend([Todo::Compute(run.step_cpu_s), Todo::Wait(run.step_wait_s)]);
            }
        }
        // A worker's call runs when its computing is done.
        let calling = |i: usize| workers[i].todo.is_empty() && calls[i].computes();
        let others = stores[stored..storing].iter().chain([&fetcher, &trainer]);
        let others = others.filter(|process| process.computes()).count();
        let computing = workers.iter().filter(|worker| worker.computes()).count()
            + (0..calls.len()).filter(|&i| calling(i)).count()
            + others;
        let share = (run.cores / computing.max(1) as f64).min(1.0);
        let called: Vec<bool> = (0..calls.len()).map(calling).collect();
        workers.iter_mut().for_each(|worker| worker.pass(share));
        calls.iter_mut().zip(called).filter(|(_, now)| *now).for_each(|(call, _)| call.pass(share));
        let others = stores[stored..storing].iter_mut().chain([&mut fetcher, &mut trainer]);
        others.for_each(|process| process.pass(share));
        now_s += STEP_S;
    }
    (now_s - first_s) / (splits - 1) as f64 * splits as f64
}

/// A machine and a job, drawn from `seed`: any of the three may be what it waits for.
fn draw(seed: u64) -> LocalRun {
    let mut rng = Rng::with_seed(seed);
    let between = |rng: &mut Rng, low: f64, high: f64| low * (high / low).powf(rng.f64());
    let splits = 200;
    let per_split = |seconds: f64| seconds * splits as f64;
    LocalRun {
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
    let machines = 60;
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
    // All but the fetcher, which is seldom what is waited for.
    assert!(bounds[..3].iter().all(|count| *count >= 5), "{bounds:?}");
}

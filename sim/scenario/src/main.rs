//! scratch
use gristmill_policy::scaling::*;
use gristmill_scenario::*;
fn main() {
    let path = std::env::args().nth(1).expect("path");
    let text = std::fs::read_to_string(&path).expect("file");
    let s = match Scenario::parse(&text, &path) {
        Ok(s) => s,
        Err(e) => {
            eprintln!("{e}");
            return;
        }
    };
    let t = std::time::Instant::now();
    for p in 0..s.phases.len() {
        let sw = sweep(&s, p);
        println!(
            "phase {p} optimum {} best {} counts {}",
            sw.optimum,
            sw.best_batch_time_s,
            sw.counts.len()
        );
        for c in
            sw.counts.iter().filter(|c| c.workers + 3 > sw.optimum && c.workers < sw.optimum + 3)
        {
            println!("  {} {}", c.workers, c.batch_time_s);
        }
    }
    println!("{:?}", t.elapsed());
    let run = simulate(&s, 1, Policy::Ours(Box::new(State::begin(&s.settings))));
    let mut last = String::new();
    for (i, t) in run.ticks.iter().enumerate() {
        let r = t.reason.to_string();
        if t.target != t.before
            || std::env::var("V").is_ok()
            || r.split(':').next() != last.split(':').next()
        {
            println!(
                "{i} b={} bt={:.4} stall={:.4} q={:.0} w={:.1} {}->{} {}",
                t.batches,
                t.batch_time_s,
                t.stall_s,
                t.queue_batches,
                t.workers,
                t.before,
                t.target,
                r
            );
        }
        last = r;
    }
    println!("{:?} {:?}", run.cost, run.decisions(0));
}

//! Development only: the default policy's bars with the sweeps kept on disk.
use gristmill_policy::scaling::PolicyName;
use gristmill_scaling::*;
use std::{env, fs};

fn main() {
    let args: Vec<String> = env::args().collect();
    let seeds: u64 = args[2].parse().unwrap();
    let sweep_only = args.get(3).is_some_and(|a| a == "sweep");
    let policy: PolicyName = args.get(4).map_or(PolicyName::default(), |p| p.parse().unwrap());
    let texts: Vec<(String, String)> = match args[1].as_str() {
        "all" => shipped().iter().map(|(n, t)| (n.to_string(), t.to_string())).collect(),
        range if range.contains('-') && range.chars().next().unwrap().is_ascii_digit() => {
            let (a, b) = range.split_once('-').unwrap();
            (a.parse::<u64>().unwrap()..b.parse().unwrap()).map(|n| (format!("random-{n}"), random_scenario(n))).collect()
        }
        list => list.split(',').map(|n| match n.parse::<u64>() {
            Ok(n) => (format!("random-{n}"), random_scenario(n)),
            _ => { let (n, t) = shipped().iter().find(|(s, _)| *s == n).unwrap(); (n.to_string(), t.to_string()) }
        }).collect(),
    };
    fs::create_dir_all("/tmp/scale-sweeps").unwrap();
    let (mut held, mut sum, mut medians, mut moves_all) = (0, 0.0, Vec::new(), 0usize);
    for (name, text) in &texts {
        let scenario = ScalingScenario::parse(text, name).unwrap();
        let path = format!("/tmp/scale-sweeps/{name}");
        let sweeps: Vec<(u32, f64)> = match fs::read_to_string(&path) {
            Ok(text) => text.lines().map(|l| { let (a, b) = l.split_once(' ').unwrap(); (a.parse().unwrap(), b.parse().unwrap()) }).collect(),
            Err(_) => {
                let s: Vec<(u32, f64)> = sweeps(&scenario).iter().map(|s| (s.best.workers, s.best.usd)).collect();
                let t: Vec<String> = s.iter().map(|(a, b)| format!("{a} {b:e}")).collect();
                fs::write(&path, t.join("\n")).unwrap();
                s
            }
        };
        if sweep_only { continue; }
        let runs: Vec<SimulatedRun> = (0..seeds).map(|s| simulate(&scenario, s, policy)).collect();
        let mut fails = Vec::new();
        for (phase, (best, usd)) in sweeps.iter().enumerate() {
            let mut regrets: Vec<f64> = runs.iter().map(|r| 100.0 * (r.usd_at_end(phase, &scenario.prices) / usd - 1.0)).collect();
            regrets.sort_by(f64::total_cmp);
            let median = regrets[regrets.len() / 2];
            let within = 100.0 * regrets.iter().filter(|r| **r <= 3.0).count() as f64 / regrets.len() as f64;
            let moves = runs.iter().map(|r| r.moves(phase)).max().unwrap();
            let reversals: u32 = runs.iter().map(|r| r.reversals(phase)).sum();
            let mut chosen: Vec<u32> = runs.iter().map(|r| r.chosen(phase)).collect();
            chosen.sort();
            sum += median; medians.push(median); moves_all += moves;
            if within < scenario.at_least || median > 1.0 || moves > 6 || reversals > 0 {
                fails.push(format!("  p{phase} best {best} chosen {chosen:?} median {median:.2} worst {:.1} within {within:.0} moves {moves} rev {reversals}", regrets[regrets.len() - 1]));
            } else if env::var("ALL").is_ok() {
                println!("  {name} p{phase} best {best} chosen {chosen:?} median {median:.2} worst {:.1} moves {moves}", regrets[regrets.len() - 1]);
            }
        }
        if fails.is_empty() { held += 1; } else { println!("{name}"); fails.iter().for_each(|f| println!("{f}")); }
    }
    medians.sort_by(f64::total_cmp);
    if !medians.is_empty() {
        println!("SET {} seeds {seeds}: {held} of {} hold; mean of medians {:.3} %, median {:.3} %, moves {moves_all}", args[1], texts.len(), sum / medians.len() as f64, medians[medians.len() / 2]);
    }
}

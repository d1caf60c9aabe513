//! `gristmill doctor`: is the place one is about to train on as it has to be? Asks everything at
//! once, decides then, and says one line a check.

mod probing;
mod verdicts;

use crate::output::say;
use crate::{args::DoctorArgs, failure::Failure};
use serde_json::json;

/// What a check comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// Training works, worse or dearer than it could.
    Warn,
    /// Training does not work.
    Fail,
    /// Nothing could be found out.
    Skip,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; empty if nothing is to be done.
    pub advice: String,
}

pub async fn run(args: DoctorArgs) -> Result<(), Failure> {
    let findings = probing::probe(&args).await?;
    let checks = verdicts::judge(&findings, args.workers);
    match args.json {
        true => say!("{}", as_json(&checks)),
        false => checks.iter().for_each(|check| say!("{}", as_line(check))),
    }
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count();
    match failed {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} of {} checks failed", checks.len()))),
    }
}

fn as_line(check: &Check) -> String {
    let Check { name, verdict, found, advice } = check;
    let line = format!("{:<5} {name:<12} {found}", verdict.word());
    match advice.is_empty() {
        true => line,
        false => format!("{line}; {advice}"),
    }
}

fn as_json(checks: &[Check]) -> serde_json::Value {
    let one = |check: &Check| {
        json!({
            "name": check.name,
            "verdict": check.verdict.word(),
            "found": check.found,
            "advice": check.advice,
        })
    };
    json!({
        "checks": checks.iter().map(one).collect::<Vec<_>>(),
        "ok": checks.iter().all(|check| check.verdict != Verdict::Fail),
    })
}

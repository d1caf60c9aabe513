//! Token sequences as JSON lines, with lengths as of sentences: most short, few long.

use super::ProgramFailure;
use gristmill_synthetic::RandomStream;
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

const FILES: u64 = 8;
/// Incremented whenever the same request would give other bytes.
const VERSION: u32 = 1;
/// Mean and deviation of the logarithm of the length: a mean of 68 tokens.
const LOG_MEAN: f64 = 4.0;
const LOG_DEVIATION: f64 = 0.66;
const LONGEST: f64 = 500.0;
const VOCABULARY: u64 = 30_522;

/// Generates `sequences` of them in `dir`, unless they exist.
pub fn ensure(dir: &Path, sequences: u64) -> Result<(), ProgramFailure> {
    let made = dir.join("made");
    let wanted = format!("{sequences} sequences, version {VERSION}\n");
    if fs::read_to_string(&made).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(ProgramFailure::failed)?;
    for file in 0..FILES {
        let path = dir.join(format!("tokens-{file:05}.jsonl"));
        let mut out = BufWriter::new(File::create(path).map_err(ProgramFailure::failed)?);
        for sequence in (file * sequences / FILES)..((file + 1) * sequences / FILES) {
            write_one(&mut out, sequence).map_err(ProgramFailure::failed)?;
        }
        out.flush().map_err(ProgramFailure::failed)?;
    }
    // Written last: data without it is generated again.
    fs::write(made, wanted).map_err(ProgramFailure::failed)
}

fn write_one(out: &mut impl Write, sequence: u64) -> std::io::Result<()> {
    let mut random = RandomStream::keyed(0, sequence);
    // The sum of twelve uniform numbers is close enough to normal.
    let normal: f64 = (0..12).map(|_| f64::from(random.unit())).sum::<f64>() - 6.0;
    let length = (LOG_MEAN + LOG_DEVIATION * normal).exp().clamp(4.0, LONGEST) as u64;
    out.write_all(b"{\"tokens\":[")?;
    for at in 0..length {
        let token = (f64::from(random.unit()) * VOCABULARY as f64) as u64;
        write!(out, "{}{token}", if at == 0 { "" } else { "," })?;
    }
    out.write_all(b"]}\n")
}

//! The command line of `gristmill-fetcher`.

use clap::Parser;
use gristmill_client::{
    JobOptions, ProgramFailure, RankOptions, ReportOptions, ServiceOptions, StreamOptions,
};
use gristmill_model::JobName;
use std::path::PathBuf;

/// Serve the batches of a gristmill job to a training loop.
///
/// Joins the named job, or starts it if --pipeline is given. docs/training.md describes frames and
/// acknowledgements; examples/train.py reads them with only numpy.
#[derive(Debug, Parser)]
#[command(
    name = "gristmill-fetcher", version, max_term_width = 100,
    // A fetcher serves a job that has a name, and reads data for a pipeline only.
    mut_arg("job", |arg| arg.required(true)),
    mut_arg("data", |arg| arg.requires("pipeline")),
)]
pub struct FetcherOptions {
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Unix socket to serve, readable by its owner only; `-` writes frames to standard output
    #[arg(long, default_value = "gristmill.sock")]
    pub socket: PathBuf,
    /// File that keeps the position: a restart continues after the last acknowledged batch
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Pipeline file, to start the job if it does not exist
    #[arg(long, value_name = "FILE")]
    pub pipeline: Option<PathBuf>,
    #[command(flatten)]
    pub ranks: RankOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub stream: StreamOptions,
    #[command(flatten)]
    pub report: ReportOptions,
}

impl FetcherOptions {
    /// Reads the command line of this process; ends it for `--help`, `--version`, and mistakes.
    pub fn read() -> Self {
        Self::parse()
    }

    /// The job's name.
    pub fn name(&self) -> Result<&JobName, ProgramFailure> {
        self.job.job.as_ref().ok_or_else(|| ProgramFailure::usage("--job names the job to serve"))
    }

    /// Whether frames go to standard output.
    pub fn is_stdout(&self) -> bool {
        self.socket.as_os_str() == "-"
    }

    /// Whether anybody asked what the run came to.
    pub fn is_reported(&self) -> bool {
        self.report.json || self.report.report.is_some()
    }

    /// Refuses combinations that cannot work.
    pub fn check(&self) -> Result<(), ProgramFailure> {
        if self.is_stdout() && self.report.json {
            return Err(ProgramFailure::usage(
                "--socket - writes frames to standard output, which --json needs: name a socket",
            ));
        }
        if self.ranks.range()?.is_some() {
            if self.is_stdout() {
                return Err(ProgramFailure::usage(
                    "--ranks needs a socket, to which each rank connects by itself: give --socket PATH",
                ));
            }
            self.ranks.token()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        FetcherOptions::command().debug_assert();
    }

    #[test]
    fn a_job_has_a_name_and_data_a_pipeline() {
        let parse = |words: &str| {
            let words = format!("gristmill-fetcher {words}");
            FetcherOptions::command().try_get_matches_from(words.split_whitespace())
        };
        assert!(parse("--job j --state-dir s").is_ok());
        assert!(parse("--state-dir s").is_err());
        assert!(parse("--job j --data d").is_err());
        assert!(
            parse("--job j --pipeline p --data d --workers auto --report r.html --json").is_ok()
        );
    }
}

//! `gristmill stop`: ends a job of a running service.

use crate::{
    coordinator::{call, unexpected},
    jobs::{OneJob, state, word},
    output::say,
};
use gristmill_client::Failure;
use gristmill_model::wire::{Call, Reply};
use serde_json::json;

/// Stop a job: its workers leave and its objects are removed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill stop j1 --state-dir state\n  gristmill stop j1 --backend aws"
)]
pub struct Args {
    #[command(flatten)]
    job: OneJob,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        let args = self.job;
        let service = args.connect().await?;
        match call(&service, &Call::Stop { job: args.job.clone() }).await? {
            Reply::Job(view) if args.json => {
                say!("{}", json!({ "job": view.job, "state": word(&view.state) }))
            }
            Reply::Job(view) => say!("job {} is {}", view.job, state(&view)),
            Reply::Applied if args.json => {
                say!("{}", json!({ "job": args.job, "state": "stopped" }))
            }
            Reply::Applied => say!("job {} is stopped", args.job),
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }
}

//! `gristmill stop`: ends a job of a running service.

use crate::{
    output::say,
    service::{NamedJobArgs, call, job_state_word, open_existing, state},
};
use gristmill_client::ProgramFailure;
use gristmill_model::wire::StopCall;
use serde_json::json;

/// Stop a job: its workers leave; its objects stay for an hour, or until `gristmill forget`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill stop j1 --state-dir state\n  gristmill stop j1 --backend aws"
)]
pub struct StopArgs {
    #[command(flatten)]
    job: NamedJobArgs,
}

impl StopArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let args = self.job;
        let service = open_existing(&args.service).await?;
        let view = call(&service, StopCall { job: args.job.clone() }).await?;
        if args.json {
            say!("{}", json!({ "job": view.job, "state": job_state_word(&view.state) }))
        } else {
            say!("job {} is {}", view.job, state(&view))
        }
        Ok(())
    }
}

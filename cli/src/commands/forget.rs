//! `gristmill forget`: deletes a job that has ended.

use crate::{
    output::say,
    service::{NamedJobArgs, call, open_existing},
};
use gristmill_client::ProgramFailure;
use gristmill_model::wire::{ForgetCall, ForgetReply};
use serde_json::json;

/// Delete an ended job, which frees its name
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Batches that were delivered stay with the trainer. The job's chunks, its reports of skipped records and its quarantined records are deleted; what it cached for others stays. A running job is refused: stop it first.\n\nExamples:\n  gristmill forget j1 --state-dir state\n  gristmill forget j1 --backend aws --json"
)]
pub struct ForgetArgs {
    #[command(flatten)]
    job: NamedJobArgs,
}

impl ForgetArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let args = self.job;
        let service = open_existing(&args.service).await?;
        let (mut deleted_items, mut deleted_objects) = (0, 0);
        // A large job takes several calls.
        loop {
            let ForgetReply { items, objects, all } =
                call(&service, ForgetCall { job: args.job.clone() }).await?;
            deleted_items += items;
            deleted_objects += objects;
            if all {
                break;
            }
            gristmill_client::complain!("{deleted_items} items deleted so far");
        }
        let job = &args.job;
        if args.json {
            say!("{}", json!({ "job": job, "items": deleted_items, "objects": deleted_objects }))
        } else {
            say!(
                "job {job} is forgotten: {deleted_items} items and {deleted_objects} objects deleted; the name is free"
            )
        }
        Ok(())
    }
}

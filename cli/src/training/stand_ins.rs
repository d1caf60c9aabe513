//! The work of several ranks at one step.

use super::trainer::StandIn;
use gristmill_client::{Batch, Failure};
use std::time::Instant;
use tokio::task::JoinSet;

/// Stand-ins of ranks: between two steps each keeps its buffers.
pub struct StandIns {
    first: StandIn,
    idle: Vec<StandIn>,
}

/// Ranks that work on their batches.
pub struct Working(JoinSet<Result<StandIn, Failure>>);

impl StandIns {
    pub fn new(first: StandIn) -> Self {
        Self { first, idle: Vec::new() }
    }

    /// Begins a step that came at `began`: a rank for each batch, and whether the batch is given for the first time.
    pub fn begin(
        &mut self,
        batches: impl IntoIterator<Item = (Batch, bool)>,
        began: Instant,
    ) -> Working {
        let mut working = JoinSet::new();
        for (batch, is_first) in batches {
            let mut stand_in = self.idle.pop().unwrap_or_else(|| self.first.clone());
            working.spawn(async move {
                match is_first {
                    true => stand_in.step(&batch, began).await?,
                    false => stand_in.compute(&batch, began).await?,
                }
                Ok(stand_in)
            });
        }
        Working(working)
    }

    /// Waits for all ranks of a step. Cancel safe.
    pub async fn end(&mut self, working: &mut Working) -> Result<(), Failure> {
        while let Some(done) = working.0.join_next().await {
            self.idle.push(done.map_err(Failure::failed)??);
        }
        Ok(())
    }
}

//! Turns of local workers to ask for the split that the downloader waits for.

use super::{Inner, SplitLedger};
use gristmill_model::splits::SplitPlace;
use gristmill_model::wire::EpochPlan;
use std::sync::Arc;

/// The split that the stream waits for, and who asks for it.
#[derive(Debug, Default)]
pub(super) struct AwaitedSplit {
    /// The split that the downloader waits for, while it waits.
    pub awaited: Option<SplitPlace>,
    /// The first split that is not committed, if the last answer says that nobody works on it.
    blocked: Option<SplitPlace>,
    /// Whether a worker of this process has asked for it since that answer.
    has_asked: bool,
    /// Whether a worker of this process is asking.
    is_asking: bool,
}

impl AwaitedSplit {
    /// A poll was answered: nobody works on `blocked`.
    pub fn answered(&mut self, blocked: Option<SplitPlace>) {
        (self.blocked, self.has_asked) = (blocked, false);
    }
}

/// The turn of one worker to ask for the split at `place`.
pub(crate) struct ClaimTurn {
    ledger: Arc<SplitLedger>,
    pub place: SplitPlace,
}

impl Drop for ClaimTurn {
    fn drop(&mut self) {
        self.ledger.lock().asking.is_asking = false;
    }
}

impl SplitLedger {
    /// The turn to ask for the split that the downloader waits for, if nobody works on it. There is one at a time, and
    /// one for each answer to a poll.
    pub fn turn(self: &Arc<Self>) -> Option<ClaimTurn> {
        let mut inner = self.lock();
        let Inner { asking, view, .. } = &mut *inner;
        // Without a plan, the stream waits for the index, which is claimed under any place.
        let is_indexed = view.as_ref().is_some_and(|view| view.plan.is_some());
        let awaited = if is_indexed { asking.awaited } else { asking.blocked };
        let place = awaited.filter(|awaited| asking.blocked == Some(*awaited))?;
        if asking.is_asking || asking.has_asked {
            return None;
        }
        (asking.is_asking, asking.has_asked) = (true, true);
        Some(ClaimTurn { ledger: Arc::clone(self), place })
    }

    /// The split that the downloader waits for, while it waits.
    pub fn awaited(&self) -> Option<SplitPlace> {
        self.lock().asking.awaited
    }

    /// The job's plan, once its dataset is indexed.
    pub fn plan(&self) -> Option<EpochPlan> {
        self.lock().view.as_ref()?.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FolderBuckets,
        samples::{entry, polled, split, view},
    };
    use futures::FutureExt as _;
    use gristmill_model::wire::PollReply;

    fn answer(ledger: &SplitLedger, from: u32, committed: u32, is_blocked: bool) {
        let ready: Vec<_> = (from..committed).map(|position| entry(0, position, 4)).collect();
        let polled = PollReply { head_of_line_blocked: is_blocked, ..polled(&ready) };
        ledger.merge(polled, split(0, from));
    }

    #[test]
    fn one_worker_asks_after_each_answer_while_the_downloader_waits_and_nobody_works() {
        let ledger =
            Arc::new(SplitLedger::new(view(), SplitPlace::default(), FolderBuckets::default()));
        answer(&ledger, 0, 2, true);
        assert!(ledger.turn().is_none(), "the downloader does not wait");
        for position in 0..2 {
            assert!(ledger.take(split(0, position)).now_or_never().is_some());
        }
        let mut waits = Box::pin(ledger.take(split(0, 2)));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(ledger.awaited(), Some(split(0, 2)));
        let turn = ledger.turn().unwrap();
        assert_eq!(turn.place, split(0, 2));
        assert!(ledger.turn().is_none(), "one at a time");
        answer(&ledger, 2, 2, true);
        assert!(ledger.turn().is_none(), "the first one is still asking");
        drop(turn);
        drop(ledger.turn().unwrap());
        assert!(ledger.turn().is_none(), "it has asked, and there is no other answer");
        answer(&ledger, 2, 2, false);
        assert!(ledger.turn().is_none(), "somebody works on it");
        answer(&ledger, 2, 3, true);
        assert!(ledger.turn().is_none(), "the blocked split is not the one that is awaited");
        assert!(waits.now_or_never().is_some());
        assert_eq!(ledger.awaited(), None);
    }

    #[test]
    fn nothing_is_awaited_once_the_stream_begins_again() {
        let ledger =
            Arc::new(SplitLedger::new(view(), SplitPlace::default(), FolderBuckets::default()));
        answer(&ledger, 0, 0, true);
        let mut waits = Box::pin(ledger.take(split(0, 0)));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(waits);
        ledger.reopen(SplitPlace::default());
        assert!(ledger.turn().is_none() && ledger.awaited().is_none());
    }
}

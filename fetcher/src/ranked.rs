//! Serves ranks of a run, each over a connection of its own to one socket.

use crate::{
    options::Options,
    program::{failure_of, open_job, open_state, say},
    socket::Socket,
};
use gristmill_client::{
    Failure, OwnRanks, Service,
    cursor::{CursorStore, Identity},
    server::{
        kept,
        ranks::{Beginning, Counts, RankActivity, RankServer},
    },
    waiting::{Waiting, Watcher, while_saying},
};
use gristmill_model::splits::ranks::{Ranks, Tail};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use std::{cell::RefCell, num::NonZeroU32, time::Instant};

/// Clients beside one for each rank: those that are refused with the reason.
const MORE_CLIENTS: usize = 8;

/// Ranks whose job is open, and what serves them.
struct Serving {
    server: RankServer<Box<dyn CursorStore>>,
    socket: Socket,
    watcher: Watcher,
}

/// Serves the ranks `range` of `of`.
pub async fn serve(
    options: &Options,
    service: &Service,
    (range, of): (RankRange, NonZeroU32),
) -> Result<(), Failure> {
    let link = &service.link;
    let starting = start(options, service, (range, of));
    let Serving { mut server, socket, watcher } =
        while_saying(starting, || Some(link.waiting()), say).await?;
    let known = RefCell::new((server.activity(), Instant::now()));
    let waiting = || {
        let (activity, since) = &mut *known.borrow_mut();
        // Another wait than the one before.
        if activity.has_changed().is_ok_and(|changed| changed) {
            activity.mark_unchanged();
            *since = Instant::now();
            return None;
        }
        let activity = activity.borrow();
        waiting(&activity, since.elapsed().as_secs(), link.or(watcher.waiting()), options)
    };
    let serving = async {
        let (visitors, arriving) = tokio::sync::mpsc::channel(1);
        let clients = 2 * range.count.get() as usize + MORE_CLIENTS;
        tokio::select! {
            served = server.serve(arriving) => served,
            () = socket.accept(visitors, clients) => Ok(()),
        }
    };
    while_saying(serving, waiting, say).await.map_err(failure_of)?;
    drop(socket);
    report(options, &server.counts())
}

/// Joins or starts the job, and opens its stream where these ranks begin.
async fn start(
    options: &Options,
    service: &Service,
    (range, of): (RankRange, NonZeroU32),
) -> Result<Serving, Failure> {
    let token = options.ranks.token(|name| std::env::var(name).ok())?;
    let checkpoint = options.ranks.checkpoint()?;
    let mut cursors = open_state(options)?;
    // Before anything is started: what cannot be served should not begin.
    Socket::check(&options.socket).map_err(Failure::usage)?;
    let job = open_job(options, service).await?;
    let socket = Socket::bind(&options.socket).map_err(Failure::usage)?;
    let resume = checkpoint.map(|checkpoint| checkpoint.cursor_in(&job.view)).transpose();
    let resume = resume.map_err(|error| Failure::Usage(format!("--resume: {error}")))?;
    let kept = kept(&mut cursors, &Identity::of(&job.view)).map_err(failure_of)?;
    let status = job.status(options.stream.patience).await?;
    let pipeline = job.pipeline().map_err(Failure::failed)?;
    let tail = options.ranks.tail.unwrap_or(Tail::default_of(pipeline.drop_remainder()));
    let (beginning, from) =
        Beginning::of(&status, (token, range, of), (resume, kept)).map_err(Failure::Usage)?;
    let run = TrainingRun { token, ranks: Ranks { count: of, from, tail } };
    let own = OwnRanks { run, range, is_successor: beginning.is_successor() };
    let fetcher = job.open_for(Some(own), beginning.known(), &options.stream).await?;
    let watcher = fetcher.watcher();
    let server = RankServer::new(fetcher, cursors, beginning)?;
    let at = options.socket.display();
    tracing::info!(job = %job.view.job, "serving {range} of {of} at {at}");
    Ok(Serving { server, socket, watcher })
}

/// The wait to report after `seconds` of it: none while the ranks work.
fn waiting(
    activity: &RankActivity,
    seconds: u64,
    waiting: Waiting,
    options: &Options,
) -> Option<Waiting> {
    let or_fault = |text: String| match waiting.is_fault {
        true => waiting.clone(),
        false => Waiting::patiently(text),
    };
    let socket = options.socket.display();
    match activity {
        RankActivity::Absent(ranks) => {
            Some(or_fault(format!("{} to connect to {socket}", named(ranks))))
        }
        RankActivity::Slow(ranks) => Some(or_fault(format!(
            "{} to take a batch: {} taken none for {seconds} s, and the others wait",
            named(ranks),
            if ranks.len() == 1 { "it has" } else { "they have" }
        ))),
        RankActivity::LastAck(ranks) => {
            Some(or_fault(format!("{} to acknowledge the last batch", named(ranks))))
        }
        RankActivity::Fetching => Some(waiting),
        RankActivity::Closing => Some(or_fault(
            "the other fetchers of the run to finish, and the service to close the job".to_owned(),
        )),
        RankActivity::Training | RankActivity::Over => None,
    }
}

/// Ranks by name, such as `ranks 1, 2 and 5`.
fn named(ranks: &[u32]) -> String {
    /// Ranks that are named before the rest is counted.
    const MOST: usize = 8;
    let numbers: Vec<_> = ranks.iter().take(MOST).map(u32::to_string).collect();
    match (numbers.split_last(), ranks.len()) {
        (Some((only, [])), 1) => format!("rank {only}"),
        (Some((last, first)), ..=MOST) => format!("ranks {} and {last}", first.join(", ")),
        (_, count) => format!("ranks {} and {} more", numbers.join(", "), count - numbers.len()),
    }
}

/// Prints the steps of the ranks, if anybody asked.
fn report(options: &Options, counts: &Counts) -> Result<(), Failure> {
    if options.report.json {
        let text = serde_json::to_string(counts).map_err(Failure::failed)?;
        println!("{text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_and_counted() {
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[2, 3]), "ranks 2 and 3");
        assert_eq!(named(&[1, 2, 5]), "ranks 1, 2 and 5");
        let many: Vec<u32> = (0..12).collect();
        assert_eq!(named(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }
}

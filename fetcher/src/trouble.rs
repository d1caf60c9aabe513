//! What keeps a service on this machine from its work: asked of the service, since its clients only see that nothing
//! comes.

use std::{
    future::{Future, pending},
    time::Duration,
};
use tokio::time::{Instant, sleep};

const PACE: Pace = Pace {
    look: Duration::from_secs(1),
    repeat: Duration::from_secs(60),
    patience: Duration::from_secs(120),
};

#[derive(Clone, Copy)]
struct Pace {
    look: Duration,
    /// Between two lines about the same trouble.
    repeat: Duration,
    /// How long a service may be in trouble before its jobs are given up here.
    patience: Duration,
}

/// Has `tell` say in one line what keeps a service from its work, at once and then once a minute, and when it is
/// over. Ends, with the reason, only when that has lasted for two minutes; without a service never.
///
/// `ask` answers what the trouble is, if there is any; nothing when the service does not answer.
pub async fn give_up<F>(ask: Option<impl Fn() -> F>, tell: impl Fn(&str)) -> String
where
    F: Future<Output = Option<Option<String>>>,
{
    match ask {
        Some(ask) => watch(ask, tell, PACE).await,
        None => pending().await,
    }
}

async fn watch<F>(ask: impl Fn() -> F, tell: impl Fn(&str), pace: Pace) -> String
where
    F: Future<Output = Option<Option<String>>>,
{
    let Pace { look, repeat, patience } = pace;
    // When the trouble began, and when it was told last.
    let mut known: Option<(Instant, Instant)> = None;
    loop {
        match (ask().await, &mut known) {
            (Some(Some(trouble)), None) => {
                tell(&trouble);
                known = Some((Instant::now(), Instant::now()));
            }
            (Some(Some(trouble)), Some((began, _))) if began.elapsed() >= patience => {
                let what = trouble.rsplit_once(": ").map_or(&*trouble, |(what, _)| what);
                let seconds = patience.as_secs();
                return format!(
                    "{what}, and was for {seconds} s: free some and start the job again"
                );
            }
            (Some(Some(trouble)), Some((_, told))) if told.elapsed() >= repeat => {
                tell(&trouble);
                *told = Instant::now();
            }
            (Some(None), Some(_)) => {
                known = None;
                tell("there is room again: the job goes on");
            }
            _ => {}
        }
        sleep(look).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, future::ready};

    #[tokio::test]
    async fn trouble_is_told_at_once_then_now_and_then_and_ends_a_run_in_the_end() {
        let ms = Duration::from_millis;
        let pace = Pace { look: ms(2), repeat: ms(80), patience: ms(200) };
        let (said, asked) = (RefCell::new(Vec::new()), RefCell::new(0));
        let ask = || {
            *asked.borrow_mut() += 1;
            let full = !(5..8).contains(&*asked.borrow());
            ready(Some(full.then(|| "the disk under /a: b is full (0 bytes free): do".to_owned())))
        };
        let ended = watch(ask, |text| said.borrow_mut().push(text.to_owned()), pace).await;
        assert_eq!(
            ended,
            "the disk under /a: b is full (0 bytes free), and was for 0 s: free some and start the job again"
        );
        let said = said.into_inner();
        assert!(said[0].contains("is full") && said[1].contains("room again"), "{said:?}");
        assert!((3..=6).contains(&said.len()), "{said:?}");
    }
}

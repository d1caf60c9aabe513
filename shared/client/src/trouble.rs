//! Problems of a service on this machine, polled from the service: its clients only see that no batch comes.

use gristmill_ports::{SystemClock, time_run};
use gristmill_stream::waiting::TrackedCoordinator;
use std::{future::Future, time::Duration};

/// Records in `link` the problem that keeps a service from working, asking every `look`. Resolves, with the reason, only
/// when the problem has lasted for `patience`.
///
/// `ask` returns the problem, if there is one; nothing if the service does not answer.
pub(crate) async fn give_up<F>(
    ask: impl Fn() -> F,
    link: &TrackedCoordinator,
    (patience, look): (Duration, Duration),
) -> String
where
    F: Future<Output = Option<Option<String>>>,
{
    // Time between looks, of which none lasts longer than some seconds.
    let mut waited = Duration::ZERO;
    loop {
        if let Some(said) = ask().await {
            link.service_says(said.clone());
            if said.is_none() {
                waited = Duration::ZERO;
            }
            if let Some(trouble) = said
                && waited >= patience
            {
                let what = trouble.rsplit_once(": ").map_or(&*trouble, |(what, _)| what);
                let seconds = patience.as_secs();
                return format!("{what}, for {seconds} s: free some space and start the job again");
            }
        }
        waited += time_run(&SystemClock, look).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_stream::samples::SilentCoordinator;
    use std::{cell::Cell, future::ready, sync::Arc};

    #[tokio::test]
    async fn trouble_is_known_while_it_lasts_and_ends_a_run_after_its_patience() {
        let (link, asked) = (TrackedCoordinator::new(Arc::new(SilentCoordinator)), Cell::new(0));
        let ask = || {
            asked.set(asked.get() + 1);
            // Full, then not for a moment, then full.
            let full = !(5..8).contains(&asked.get());
            if asked.get() > 1 {
                let was_full = !(5..8).contains(&(asked.get() - 1));
                assert_eq!(link.waiting().text.contains("is full"), was_full, "{}", asked.get());
            }
            ready(Some(full.then(|| "the disk under /a: b is full (0 bytes free): do".to_owned())))
        };
        let ms = Duration::from_millis;
        let ended = give_up(ask, &link, (ms(200), ms(2))).await;
        assert_eq!(
            ended,
            "the disk under /a: b is full (0 bytes free), for 0 s: free some space and start the \
             job again"
        );
        assert!(asked.get() > 10, "{}", asked.get());
    }
}

//! The end of a lease: commits that go on beside the next one.

use futures::future::BoxFuture;

/// The commits of a lease whose splits are computed. Storing and flushing them takes requests and no CPU, so the next
/// lease is claimed and computed meanwhile.
#[derive(Default)]
pub(crate) struct PendingCommits<'a>(Option<BoxFuture<'a, ()>>);

impl<'a> PendingCommits<'a> {
    pub fn new(commits: impl Future<Output = ()> + Send + 'a) -> Self {
        Self(Some(Box::pin(commits)))
    }

    /// Waits for the commits.
    pub async fn finish(&mut self) {
        if let Some(commits) = &mut self.0 {
            commits.await;
            self.0 = None;
        }
    }

    /// Waits for `other`, while the commits go on.
    pub async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        tokio::select! {
            biased;
            done = &mut other => return done,
            () = self.finish() => {}
        }
        other.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_claim_does_not_wait_for_commits() {
        let (_never, commits) = oneshot::channel::<()>();
        let mut tail = PendingCommits::new(async { drop(commits.await) });
        assert_eq!(tail.beside(async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn commits_go_on_while_a_claim_waits() {
        let (committed, seen) = oneshot::channel();
        let mut tail = PendingCommits::new(async { committed.send(()).unwrap() });
        tail.beside(async { seen.await.unwrap() }).await;
        tail.finish().await;
    }

    #[tokio::test]
    async fn commits_that_a_claim_left_are_finished() {
        let (permit, permitted) = oneshot::channel::<()>();
        let (committed, mut seen) = oneshot::channel();
        let mut tail = PendingCommits::new(async {
            permitted.await.unwrap();
            committed.send(()).unwrap();
        });
        tail.beside(async {}).await;
        assert!(seen.try_recv().is_err());
        permit.send(()).unwrap();
        tail.finish().await;
        seen.try_recv().unwrap();
    }
}

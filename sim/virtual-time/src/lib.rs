//! Virtual time of a simulation: it stands still while any task can run, and jumps to the next timer when none can.

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Unix time at which every simulation begins.
const BEGINNING: Duration = Duration::from_secs(1_700_000_000);

/// Waiting tasks, by time and then by order of registration.
#[derive(Debug, Default)]
struct Timers {
    now: Duration,
    registered: u64,
    waiting: BTreeMap<(Duration, u64), Waker>,
}

/// Virtual time of one simulation.
#[derive(Debug, Default)]
pub struct VirtualTime(Mutex<Timers>);

impl VirtualTime {
    /// Time since the simulation began.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Time since the Unix epoch, as a correct clock shows it.
    pub fn unix_time(&self) -> Duration {
        BEGINNING + self.now()
    }

    /// Resolves `duration` from now.
    pub fn sleep(self: &Arc<Self>, duration: Duration) -> VirtualSleep {
        VirtualSleep { time: Arc::clone(self), at: self.now() + duration, key: None }
    }

    /// Jumps to the next timer and wakes the tasks that wait for it.
    fn advance(&self) {
        let mut timers = self.0.lock();
        let Some((&(at, _), _)) = timers.waiting.first_key_value() else { return };
        timers.now = timers.now.max(at);
        // One by one: splitting the map takes time proportional to the number of timers.
        let mut due = Vec::new();
        while let Some(timer) = timers.waiting.first_entry()
            && timer.key().0 == at
        {
            due.push(timer.remove());
        }
        drop(timers);
        due.into_iter().for_each(Waker::wake);
    }

    /// A runtime of one thread in which this time passes whenever nothing else can happen.
    pub fn runtime(self: &Arc<Self>) -> std::io::Result<tokio::runtime::Runtime> {
        let time = Arc::clone(self);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.on_thread_park(move || time.advance()).build()
    }
}

/// Future of [`VirtualTime::sleep`].
#[derive(Debug)]
pub struct VirtualSleep {
    time: Arc<VirtualTime>,
    at: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (time, at) = (Arc::clone(&self.time), self.at);
        let mut timers = time.0.lock();
        if timers.now >= at {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            timers.registered += 1;
            (at, timers.registered)
        });
        timers.waiting.insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.time.0.lock().waiting.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_when_nothing_can_run() {
        let time = Arc::new(VirtualTime::default());
        let began = std::time::Instant::now();
        let order = time.runtime().unwrap().block_on(async {
            let order = Arc::new(Mutex::new(Vec::new()));
            let sleepers = [3600, 60, 7200].map(|seconds| {
                let (time, order) = (Arc::clone(&time), Arc::clone(&order));
                tokio::spawn(async move {
                    time.sleep(Duration::from_secs(seconds)).await;
                    order.lock().push((seconds, time.now().as_secs()));
                })
            });
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
            order.lock().clone()
        });
        assert_eq!(order, [(60, 60), (3600, 3600), (7200, 7200)]);
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

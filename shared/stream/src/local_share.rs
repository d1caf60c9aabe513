//! Counters that keep local workers at a fixed share of the splits, as in FastFlow (Um et al., VLDB 2023).

use crate::ledger::SplitLedger;
use gristmill_model::{LocalShare, Nonce, splits::SplitPlace};
use std::collections::BTreeMap;

/// Splits since the stream began. Local ones count from when they are begun, all others once their commit is known.
#[derive(Debug, Default)]
pub(crate) struct ShareCounter {
    /// Commits that are known here, by workers of any kind.
    committed: u64,
    /// Splits that local workers of this process have begun, and those that they are about to claim.
    local: u64,
    claims: u64,
    /// Local splits whose commit is not known, with the nonces of those that are stored.
    open: BTreeMap<SplitPlace, Option<Nonce>>,
}

impl ShareCounter {
    /// Whether one more local split is within the part of one of `hosts`.
    fn allows_more(&self, share: LocalShare, hosts: u32) -> bool {
        let more = self.claims + 1;
        share.allows(self.local + more, self.committed + self.open.len() as u64 + more, hosts)
    }

    fn begin(&mut self, place: SplitPlace) {
        if self.open.insert(place, None).is_none() {
            self.local += 1;
        }
    }

    /// The split at `place` is committed. One that was begun here may have been made elsewhere.
    pub fn committed(&mut self, place: SplitPlace, nonce: Nonce) {
        self.committed += 1;
        if self.open.remove(&place).is_some_and(|stored| stored != Some(nonce)) {
            self.local = self.local.saturating_sub(1);
        }
    }
}

/// The share of the job, if it has a fixed one; without one nothing is counted.
impl SplitLedger {
    /// Takes the right to claim one more split here. It lasts until [`Self::end_local_claim`].
    pub fn begin_local_claim(&self, hosts: u32) -> bool {
        self.with_share(|counter, share| {
            let may = counter.allows_more(share, hosts);
            counter.claims += u64::from(may);
            may
        })
        .unwrap_or(true)
    }

    /// The claim is over. The lease begins with the split at `begun`, if there is one.
    pub fn end_local_claim(&self, was_counted: bool, begun: Option<SplitPlace>) {
        self.with_share(|counter, _| {
            counter.claims = counter.claims.saturating_sub(u64::from(was_counted));
            begun.into_iter().for_each(|place| counter.begin(place));
        });
    }

    /// Begins a further split of a lease here, if the share allows it.
    pub fn begin_local_split(&self, place: SplitPlace, hosts: u32) -> bool {
        self.with_share(|counter, share| {
            let may = counter.allows_more(share, hosts);
            if may {
                counter.begin(place);
            }
            may
        })
        .unwrap_or(true)
    }

    /// The split at `place` is stored here as `nonce`.
    pub fn note_local_split(&self, place: SplitPlace, nonce: Nonce) {
        self.with_share(|counter, _| {
            if let Some(stored) = counter.open.get_mut(&place) {
                *stored = Some(nonce);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(split: u32) -> SplitPlace {
        SplitPlace::new(0, split)
    }

    /// Splits of `hosts`, and of remote workers that are so many times as fast as a host, whose commits are known late.
    fn run(share: f64, hosts: usize, remote_speed: u32, late: usize) -> (Vec<u64>, u64) {
        let share = LocalShare::new(share).unwrap();
        let mut counters: Vec<ShareCounter> =
            std::iter::repeat_with(ShareCounter::default).take(hosts).collect();
        let (mut made, mut log, mut seen) = (vec![0; hosts], Vec::new(), vec![0; hosts]);
        for turn in 0..2_000_u32 {
            let host = turn as usize % (hosts + remote_speed as usize);
            let next = place(log.len() as u32);
            let Some(counter) = counters.get_mut(host) else {
                log.push((next, Nonce([u8::MAX; 8])));
                continue;
            };
            while seen[host] + late < log.len() {
                let (place, nonce) = log[seen[host]];
                counter.committed(place, nonce);
                seen[host] += 1;
            }
            if counter.allows_more(share, hosts as u32) {
                let nonce = Nonce([host as u8; 8]);
                counter.begin(next);
                counter.open.insert(next, Some(nonce));
                log.push((next, nonce));
                made[host] += 1;
                let (all, local) = (log.len() as u64, made[host]);
                assert!(share.allows(local, all, hosts as u32), "{local} of {all}");
            }
        }
        (made, log.len() as u64)
    }

    #[test]
    fn local_splits_stay_within_one_of_the_share_on_every_host() {
        for share in [0.1, 0.25, 0.5, 0.9] {
            for hosts in [1, 2, 3] {
                // Too much is asked of them: they are never ahead.
                run(share, hosts, 40, 0);
            }
        }
        // Remote workers are slow enough for the hosts to keep their part.
        for (share, hosts, late) in [(0.25, 1, 0), (0.25, 2, 0), (0.1, 3, 0), (0.25, 2, 8)] {
            let (made, all) = run(share, hosts, 2, late);
            let part = share * all as f64 / hosts as f64;
            let behind = 1.0 + share * late as f64;
            let near = made.iter().all(|local| (*local as f64 - part).abs() <= behind);
            assert!(near, "{share} on {hosts}, {late} late: {made:?} of {all}");
            assert!(made.iter().all(|local| local.abs_diff(made[0]) <= 1), "{made:?}");
        }
    }

    #[test]
    fn a_split_that_another_worker_commits_is_none_of_ours() {
        let (mut counter, share) = (ShareCounter::default(), LocalShare::new(0.5).unwrap());
        assert!(counter.allows_more(share, 1));
        counter.begin(place(0));
        counter.begin(place(0));
        assert_eq!((counter.local, counter.open.len()), (1, 1));
        counter.committed(place(0), Nonce([7; 8]));
        assert_eq!((counter.local, counter.committed), (0, 1));
        counter.claims = 1;
        assert!(counter.allows_more(share, 1) && !counter.allows_more(share, 9));
    }
}

//! One run of ranks over the fetchers of several hosts, as flags of those.

use crate::trainer;
use gristmill_client::JobHandle;
use gristmill_model::splits::ranks::TailPolicy;
use std::num::NonZeroU32;

/// A run: it has one number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedRun {
    pub ranks: NonZeroU32,
    pub hosts: NonZeroU32,
    /// The name, another one for each run.
    pub name: String,
    tail: Option<TailPolicy>,
    /// The number of the run, and the text of the checkpoint that it begins at.
    number: u32,
    resume: Option<String>,
    prefix: String,
}

impl HostedRun {
    /// The first run of a training.
    pub fn first(
        ranks: NonZeroU32,
        hosts: NonZeroU32,
        tail: Option<TailPolicy>,
        job: &JobHandle,
    ) -> Self {
        // A job of this name may have been trained on before.
        let prefix = format!("hosts-{}", job.service.ports.clock.nonce());
        Self { ranks, hosts, name: format!("{prefix}-0"), tail, number: 0, resume: None, prefix }
    }

    /// The run that goes on at a checkpoint of this one.
    pub fn resumed(self, trainer::LaterRun { ranks, checkpoint }: trainer::LaterRun) -> Self {
        let number = self.number + 1;
        let name = format!("{}-{number}", self.prefix);
        Self { ranks, name, number, resume: Some(checkpoint), ..self }
    }

    fn ranks_per_host(&self) -> u32 {
        self.ranks.get() / self.hosts.get()
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_host().max(1)
    }

    /// The flags of the fetcher of `host`.
    pub fn flags(&self, host: u32) -> Vec<String> {
        let count = self.ranks_per_host();
        let (first, last) = (host * count, host * count + count - 1);
        let mut flags = vec![
            "--ranks".to_owned(),
            format!("{first}-{last}"),
            "--of".to_owned(),
            self.ranks.to_string(),
            "--run".to_owned(),
            self.name.clone(),
        ];
        if let Some(resume) = &self.resume {
            flags.extend(["--resume".to_owned(), resume.clone()]);
        }
        if let Some(tail) = &self.tail {
            flags.extend(["--tail".to_owned(), tail.to_string()]);
        }
        flags
    }
}

/// Why `ranks` cannot be spread over `hosts`, if so.
pub fn refuse_shares(ranks: NonZeroU32, hosts: NonZeroU32) -> Option<String> {
    if ranks < hosts {
        return Some(format!(
            "--hosts {hosts} needs at least as many ranks, and there are {ranks}"
        ));
    }
    (!ranks.get().is_multiple_of(hosts.get()))
        .then(|| format!("--hosts {hosts} must divide the ranks evenly, and there are {ranks}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    #[test]
    fn each_host_has_its_share_of_the_ranks() {
        let run = HostedRun {
            ranks: number(6),
            hosts: number(3),
            name: "r-0".to_owned(),
            tail: Some(TailPolicy::Drop),
            number: 0,
            resume: None,
            prefix: "r".to_owned(),
        };
        assert_eq!((0..6).map(|rank| run.host_of(rank)).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(run.flags(2).join(" "), "--ranks 4-5 --of 6 --run r-0 --tail drop");
        let later =
            run.resumed(trainer::LaterRun { ranks: number(3), checkpoint: "{}".to_owned() });
        assert_eq!(
            later.flags(0).join(" "),
            "--ranks 0-0 --of 3 --run r-1 --resume {} --tail drop"
        );
    }

    #[test]
    fn hosts_have_equally_many_ranks() {
        assert_eq!(refuse_shares(number(4), number(2)), None);
        for (ranks, why) in [(1, "at least as many"), (3, "divide the ranks evenly")] {
            assert!(refuse_shares(number(ranks), number(2)).unwrap().contains(why), "{ranks}");
        }
    }
}

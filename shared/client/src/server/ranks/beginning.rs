//! The beginning of the ranks of a fetcher.

use gristmill_model::splits::Cursor;

/// The positions that name the beginning, before any rank says hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Beginning {
    /// An earlier fetcher of the same run had made this durable for these ranks.
    pub succeeds: Option<Cursor>,
    /// A person named the beginning of the run.
    pub resume: Option<Cursor>,
    /// The state file has this position.
    pub kept: Option<Cursor>,
    /// The position that the job's last run had made durable.
    pub durable: Cursor,
}

impl Beginning {
    /// The beginning as far as is known.
    pub fn known(&self) -> Cursor {
        self.with(None)
    }

    /// The beginning if the first rank's checkpoint goes on at `hello`.
    pub fn with(&self, hello: Option<Cursor>) -> Cursor {
        let Self { succeeds, resume, kept, durable } = *self;
        succeeds.or(resume).or(hello).or(kept).unwrap_or(durable)
    }

    /// Whether the fetcher takes the place of an earlier one of the same run.
    pub fn is_successor(&self) -> bool {
        self.succeeds.is_some()
    }

    /// Whether the first rank's checkpoint decides.
    pub fn is_open(&self) -> bool {
        self.succeeds.or(self.resume).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_before_a_person_a_checkpoint_and_a_file_are_asked() {
        let at = |batch_index| Cursor::new(0, batch_index);
        let job = Beginning { durable: at(1), ..Beginning::default() };
        assert_eq!((job.known(), job.with(Some(at(9)))), (at(1), at(9)));
        let file = Beginning { kept: Some(at(2)), ..job };
        assert_eq!((file.known(), file.with(Some(at(9)))), (at(2), at(9)));
        let person = Beginning { resume: Some(at(3)), ..file };
        assert_eq!(person.with(Some(at(9))), at(3));
        assert!(file.is_open() && !person.is_open() && !person.is_successor());
        let successor = Beginning { succeeds: Some(at(4)), ..person };
        assert_eq!(successor.with(Some(at(9))), at(4));
        assert!(successor.is_successor() && !successor.is_open());
    }
}

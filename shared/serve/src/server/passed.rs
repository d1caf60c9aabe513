//! The steps that a server of ranks has passed since the last durable one.

use gristmill_model::Epoch;
use gristmill_model::splits::Cursor;
use std::collections::{BTreeMap, VecDeque};

/// A step of the ranks served here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassedStep {
    pub start: Cursor,
    pub next: Cursor,
    /// The first so many of the ranks have a batch.
    pub given: usize,
}

/// Steps in order, and the ends of epochs.
#[derive(Debug)]
pub(super) struct PassedSteps {
    steps: VecDeque<PassedStep>,
    /// The first batch behind the last step of an epoch, by epoch.
    ends: BTreeMap<Epoch, u64>,
    /// The position of the stream.
    head: Cursor,
}

impl PassedSteps {
    /// The steps of a stream that begins at `at`.
    pub fn new(at: Cursor) -> Self {
        Self { steps: VecDeque::new(), ends: BTreeMap::new(), head: at }
    }

    /// The position of the stream.
    pub fn head(&self) -> Cursor {
        self.normal(self.head)
    }

    /// The start of the next epoch for a cursor at the known end of one.
    pub fn normal(&self, mut cursor: Cursor) -> Cursor {
        while self.ends.get(&cursor.epoch).is_some_and(|end| cursor.batch_index >= *end) {
            cursor = Cursor::start_of(cursor.epoch.saturating_add(1));
        }
        cursor
    }

    /// The first batch behind the last step of the epoch of `cursor`, if that is known and before `cursor`.
    pub fn end_before(&self, cursor: Cursor) -> Option<u64> {
        self.ends.get(&cursor.epoch).copied().filter(|end| cursor.batch_index > *end)
    }

    /// The step that begins at `start`.
    pub fn find(&self, start: Cursor) -> Option<PassedStep> {
        let index = self.steps.binary_search_by(|step| step.start.cmp(&start)).ok()?;
        self.steps.get(index).copied()
    }

    /// Whether a step begins or ends at `at`.
    pub fn is_boundary(&self, at: Cursor) -> bool {
        self.find(at).is_some() || self.steps.iter().any(|step| step.next == at)
    }

    /// Adds a step; whether it is new.
    pub fn push(&mut self, step: PassedStep) -> bool {
        self.go_to(step.start);
        self.head = step.next;
        let is_new = self.steps.back().is_none_or(|last| last.start < step.start);
        if is_new {
            self.steps.push_back(step);
        }
        is_new
    }

    /// The steps of `epoch` are over.
    pub fn end_epoch(&mut self, epoch: Epoch) {
        self.go_to(Cursor::start_of(epoch.saturating_add(1)));
    }

    /// Goes on to `at`: epochs before it are over.
    pub fn go_to(&mut self, at: Cursor) {
        while self.head.epoch < at.epoch {
            self.ends.entry(self.head.epoch).or_insert(self.head.batch_index);
            self.head = Cursor::start_of(self.head.epoch + 1);
        }
    }

    /// The stream begins again at `at`.
    pub fn reopened(&mut self, at: Cursor) {
        self.head = at;
    }

    /// Forgets steps that end before `durable` or there.
    pub fn forget_before(&mut self, durable: Cursor) {
        let durable = self.normal(durable);
        while let Some(step) = self.steps.front()
            && self.normal(step.next) <= durable
        {
            self.steps.pop_front();
        }
    }
}

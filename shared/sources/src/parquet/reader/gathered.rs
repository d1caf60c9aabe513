//! Puts the numbers of rows together from values and levels, and checks that lists are as the feature says.

use super::columns::{AbsenceReason, FeatureColumn};
use crate::MAX_VALUES;
use std::ops::Range;

/// Deepest lists of a column.
pub(super) const MAX_LISTS: usize = 8;

/// Values of rows, being put together.
pub(super) struct GatheredRows<'c, 'a> {
    column: &'c FeatureColumn<'a>,
    bytes: Vec<u8>,
    rows: Vec<Result<Range<usize>, String>>,
    /// State of the current row: its start, its values, and the entries of each open list.
    start: usize,
    count: usize,
    entries: [usize; MAX_LISTS + 1],
    fault: Option<String>,
    open: bool,
}

impl<'c, 'a> GatheredRows<'c, 'a> {
    pub(super) fn new(column: &'c FeatureColumn<'a>, rows: usize) -> Self {
        GatheredRows {
            column,
            bytes: Vec::new(),
            rows: Vec::with_capacity(rows),
            start: 0,
            count: 0,
            entries: [0; MAX_LISTS + 1],
            fault: None,
            open: false,
        }
    }

    fn fail(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    /// The next value belongs to the list at this repetition level: lists within it have ended.
    pub(super) fn place(&mut self, level: i16) {
        let level = usize::try_from(level).unwrap_or(0);
        if level == 0 {
            self.close();
            self.open = true;
        }
        self.close_lists(level);
        if let Some(entries) = self.entries.get_mut(level) {
            *entries += 1;
        }
    }

    /// Checks the lists within the one at `level`, and begins new ones.
    fn close_lists(&mut self, level: usize) {
        let lists = usize::try_from(self.column.descriptor.max_rep_level()).unwrap_or(0);
        for depth in (level + 1)..=lists.min(MAX_LISTS) {
            let entries = std::mem::replace(&mut self.entries[depth], 1);
            let dims = &self.column.feature.shape;
            // The outermost is checked with the number of values.
            if depth < 2 || entries == 0 || lists != dims.len() {
                continue;
            }
            if let Some(Some(dim)) = dims.get(depth - 1)
                && entries != *dim as usize
            {
                self.fail(format!(
                    "has a list of {entries} at depth {depth}, the pipeline reads {dim}"
                ));
            }
        }
    }

    pub(super) fn absent(&mut self, absent: AbsenceReason) {
        match absent {
            AbsenceReason::Null { depth: 0 } => self.fail("is null".into()),
            AbsenceReason::Null { .. } => self.fail("holds a null".into()),
            // It has no lists within, whose lengths would have to be right.
            AbsenceReason::Empty { depth: 0 } => self.entries[1..].fill(0),
            AbsenceReason::Empty { depth } => {
                self.fail(format!("has an empty list at depth {}", depth + 1));
            }
        }
    }

    pub(super) fn value(&mut self, put: impl FnOnce(&mut Vec<u8>) -> Result<(), String>) {
        self.count += 1;
        let most = self.column.feature.values().unwrap_or(MAX_VALUES as usize);
        if self.count <= most
            && let Err(what) = put(&mut self.bytes)
        {
            self.fail(what);
        }
    }

    /// Ends the row at hand, if there is one.
    fn close(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if self.fault.is_none() {
            self.close_lists(0);
        }
        let fault =
            self.fault.take().map_or_else(|| self.column.feature.check_values(self.count), Err);
        let row = match fault {
            Ok(()) => Ok(self.start..self.bytes.len()),
            Err(what) => {
                self.bytes.truncate(self.start);
                Err(format!("column `{}` {what}", self.column.feature.key))
            }
        };
        self.rows.push(row);
        (self.start, self.count, self.entries) = (self.bytes.len(), 0, [0; MAX_LISTS + 1]);
    }

    pub(super) fn finish(mut self) -> (Vec<u8>, Vec<Result<Range<usize>, String>>) {
        self.close();
        (self.bytes, self.rows)
    }
}

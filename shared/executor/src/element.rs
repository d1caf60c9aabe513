//! Takes one element through the steps, which change it, drop it, or make several of it.

use crate::{
    split_execution::{ElementFault, ExecutorScratch, SplitExecution, too_many},
    step::{CompiledStep, ListCells, StepAction},
};

use gristmill_kernel::{DrawKey, MAX_ITEMS, ValueView};
use gristmill_model::RecordKey;
use std::time::{Duration, Instant};

/// Data that stays the same for all steps of an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementContext<'a> {
    pub(crate) key: RecordKey,
    pub(crate) record: &'a [u8],
    /// Number of the element among those of its record.
    pub(crate) copy: u32,
    /// How many steps so far made several elements of one.
    pub(crate) level: usize,
}

/// Result of a step on one element.
struct Done {
    bytes_in: usize,
    bytes_out: usize,
    kept: bool,
}

impl SplitExecution<'_> {
    /// Runs the steps from index `from` on, and emits every element that results.
    pub(crate) fn steps(
        &mut self,
        from: usize,
        element: ElementContext<'_>,
        at: &mut &'static str,
    ) -> Result<(), ElementFault> {
        let program = self.program;
        for (i, step) in program.steps.iter().enumerate().skip(from) {
            *at = step.blame;
            match &step.action {
                StepAction::Duplicate { copies } => return self.duplicate(i, *copies, element, at),
                StepAction::FlatMap { lists } => return self.flat_map(i, lists, element, at),
                StepAction::Point(_) if self.is_captured(i) => return self.put(i, element),
                _ => {}
            }
            let Done { bytes_in, bytes_out, kept } =
                self.act(i, step, element).map_err(|fault| match fault {
                    ElementFault::Record { reason, .. } => {
                        ElementFault::Record { op: step.blame, reason }
                    }
                    other => other,
                })?;
            let active_ns = self.lap();
            self.split.metrics[i + 1].add(active_ns, u64::from(kept), bytes_in, bytes_out);
            if !kept {
                return Ok(());
            }
        }
        *at = program.batch_op.0;
        self.emit(element)
    }

    fn duplicate(
        &mut self,
        i: usize,
        copies: u32,
        element: ElementContext<'_>,
        at: &mut &'static str,
    ) -> Result<(), ElementFault> {
        let saved = self.hold(element.level);
        let active_ns = self.lap();
        self.split.metrics[i + 1].add(active_ns, u64::from(copies), 0, 0);
        for copy in 0..copies {
            let element = self.branch(i, saved, element, copy)?;
            self.steps(i + 1, element, at)?;
        }
        self.scratch.places.truncate(saved);
        Ok(())
    }

    fn flat_map(
        &mut self,
        i: usize,
        lists: &[ListCells],
        element: ElementContext<'_>,
        at: &mut &'static str,
    ) -> Result<(), ElementFault> {
        let saved = self.hold(element.level);
        let (items, bytes) = self
            .count_items(lists)
            .map_err(|reason| ElementFault::Record { op: self.program.steps[i].name, reason })?;
        let active_ns = self.lap();
        self.split.metrics[i + 1].add(active_ns, u64::from(items), bytes, bytes);
        for item in 0..items {
            let element = self.branch(i, saved, element, item)?;
            for (_, field, item_bytes) in lists {
                self.scratch.cells[*field].narrow(item as usize * item_bytes, *item_bytes);
            }
            self.steps(i + 1, element, at)?;
        }
        self.scratch.places.truncate(saved);
        Ok(())
    }

    /// Items of each of the lists, which must have equally many, and the bytes of all.
    fn count_items(&self, lists: &[ListCells]) -> Result<(u32, usize), String> {
        let (mut items, mut bytes) = (None, 0);
        for (name, field, item_bytes) in lists {
            let list_bytes = self.scratch.cells[*field].place.bytes();
            let found = u32::try_from(list_bytes / item_bytes).unwrap_or(u32::MAX);
            let (first, expected) = *items.get_or_insert((name, found));
            if found != expected {
                return Err(format!(
                    "`{first}` has {expected} items and `{name}` {found}: lists that are unbatched have equally many"
                ));
            }
            bytes += list_bytes;
        }
        match items.map_or(0, |(_, items)| items) {
            items if items > MAX_ITEMS => {
                Err(format!("a list of {items} items; the most is {MAX_ITEMS}"))
            }
            items => Ok((items, bytes)),
        }
    }

    /// Saves all values as the start of several elements. Returns the index in `places` of the
    /// saved places.
    fn hold(&mut self, level: usize) -> usize {
        let ExecutorScratch { cells, places, .. } = &mut *self.scratch;
        let saved = places.len();
        for cell in cells {
            cell.hold(level);
            places.push((cell.place.clone(), cell.size));
        }
        saved
    }

    /// Starts the next of several elements.
    fn branch<'e>(
        &mut self,
        i: usize,
        saved: usize,
        element: ElementContext<'e>,
        copy: u32,
    ) -> Result<ElementContext<'e>, ElementFault> {
        // The previous element may have completed a batch.
        self.begin_frame()?;
        let ExecutorScratch { cells, places, .. } = &mut *self.scratch;
        for (cell, (place, size)) in cells.iter_mut().zip(&places[saved..]) {
            cell.place.clone_from(place);
            cell.size = *size;
        }
        let step = &self.program.steps[i];
        let copies = element.copy.checked_mul(step.action.width());
        let copy = copies.and_then(|first| first.checked_add(copy));
        let copy = copy.ok_or_else(|| too_many(step.name))?;
        Ok(ElementContext { copy, level: element.level + 1, ..element })
    }

    fn act(
        &mut self,
        i: usize,
        step: &CompiledStep,
        element: ElementContext<'_>,
    ) -> Result<Done, ElementFault> {
        let epoch = self.drawn_epoch(i);
        let ExecutorScratch { cells, tools, writer, .. } = &mut *self.scratch;
        let bad = |reason| ElementFault::Record { op: "", reason };
        let ElementContext { key: record, copy, .. } = element;
        let (seed, repeat) = (self.split.terms.seed, self.copy);
        let draw = DrawKey { seed, epoch, record, repeat, copy, ordinal: step.ordinal };
        let done = |bytes_in, bytes_out| Ok(Done { bytes_in, bytes_out, kept: true });
        match &step.action {
            StepAction::Filter { field, kernel } => {
                let cell = &cells[*field];
                let bytes = cell.value(element.record, &[]);
                let view = ValueView { bytes, size: step.size.unwrap_or(cell.size) };
                let kept = kernel.keeps(view, &mut draw.draw()).map_err(bad)?;
                Ok(Done { bytes_in: bytes.len(), bytes_out: 0, kept })
            }
            StepAction::Wait(duration) => {
                if sleep(*duration, self.cancelled) {
                    done(0, 0)
                } else {
                    Err(ElementFault::Cancelled)
                }
            }
            StepAction::Point(point) => {
                let bytes = self.program.points[*point].element_bytes(cells);
                done(bytes, bytes)
            }
            _ => {
                let row: &mut [u8] = match step.in_row(cells) {
                    Some(field) => writer.row_mut(self.program.tensor_of(field), self.split.row)?,
                    None => &mut [],
                };
                let applied = step.apply(cells, element.record, row, tools, || draw.draw());
                let (bytes_in, bytes_out) = applied.map_err(bad)?;
                done(bytes_in, bytes_out)
            }
        }
    }
}

/// Interval between checks for cancellation.
const SLICE: Duration = Duration::from_millis(20);

/// Waits for `duration`. Returns false if `cancelled` became true meanwhile.
pub(crate) fn sleep(duration: Duration, cancelled: &dyn Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let left = duration.saturating_sub(started.elapsed());
        if left.is_zero() {
            return true;
        }
        if left > SLICE && cancelled() {
            return false;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

//! The place of a field's value while its element is being processed.

use std::ops::Range;

/// Which memory holds the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellStorage {
    /// A range of the source record.
    Record(Range<usize>),
    /// The first bytes of one of the cell's own buffers.
    Buffer { which: usize, bytes: usize },
    /// A range of what was captured when one element became several: they all read it, and none
    /// changes it.
    Held { level: usize, range: Range<usize> },
    /// The row of the batch that the value is delivered in.
    Row,
}

impl CellStorage {
    /// Bytes of the value, as far as the place tells.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            CellStorage::Record(range) | CellStorage::Held { range, .. } => range.len(),
            CellStorage::Buffer { bytes, .. } => *bytes,
            CellStorage::Row => 0,
        }
    }
}

/// One field of the element in hand. Buffers grow to the largest value seen and are reused.
#[derive(Debug)]
pub struct FieldCell {
    pub place: CellStorage,
    /// Height and width of an image.
    pub size: [usize; 2],
    buffers: [Vec<u8>; 2],
    /// By level: how many times one element became several before.
    held: Vec<Vec<u8>>,
}

impl Default for FieldCell {
    fn default() -> Self {
        FieldCell {
            place: CellStorage::Record(0..0),
            size: [0, 0],
            buffers: [Vec::new(), Vec::new()],
            held: Vec::new(),
        }
    }
}

/// The place an operator writes its output to.
pub enum KernelOutput<'a> {
    Buffer(&'a mut Vec<u8>),
    Row(&'a mut [u8]),
}

impl<'a> KernelOutput<'a> {
    /// `bytes` bytes to write all of; what they hold is old.
    #[inline]
    pub fn take(self, bytes: usize) -> Result<&'a mut [u8], String> {
        match self {
            KernelOutput::Buffer(buffer) => {
                grow(buffer, bytes)?;
                Ok(&mut buffer[..bytes])
            }
            KernelOutput::Row(row) if row.len() == bytes => Ok(row),
            KernelOutput::Row(row) => {
                Err(format!("a row of {} bytes was given {bytes}: please report this", row.len()))
            }
        }
    }
}

/// At least `bytes` long. A size taken from the input must not abort the process.
fn grow(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), String> {
    if buffer.len() < bytes {
        let more = bytes - buffer.len();
        buffer.try_reserve(more).map_err(|_| format!("there is no memory for {bytes} bytes"))?;
        buffer.resize(bytes, 0);
    }
    Ok(())
}

impl FieldCell {
    /// The value as it is; `row` is the row it may be in.
    #[inline]
    pub fn value<'a>(&'a self, record: &'a [u8], row: &'a [u8]) -> &'a [u8] {
        match &self.place {
            CellStorage::Record(range) => record.get(range.clone()).unwrap_or_default(),
            CellStorage::Buffer { which, bytes } => &self.buffers[*which][..*bytes],
            CellStorage::Held { level, range } => &self.held[*level][range.clone()],
            CellStorage::Row => row,
        }
    }

    /// The value as it is, and a sink for what replaces it: the row if given, else a buffer not in
    /// use. Follow with [`FieldCell::moved`].
    #[inline]
    pub fn split<'a>(
        &'a mut self,
        record: &'a [u8],
        row: Option<&'a mut [u8]>,
    ) -> Result<(&'a [u8], KernelOutput<'a>), String> {
        let [first, second] = &mut self.buffers;
        let (input, spare): (&[u8], &mut Vec<u8>) = match &self.place {
            CellStorage::Record(range) => (record.get(range.clone()).unwrap_or_default(), first),
            CellStorage::Held { level, range } => (&self.held[*level][range.clone()], first),
            CellStorage::Buffer { which: 0, bytes } => (&first[..*bytes], second),
            CellStorage::Buffer { bytes, .. } => (&second[..*bytes], first),
            CellStorage::Row => return Err("a finished row was read: please report this".into()),
        };
        Ok((input, row.map_or(KernelOutput::Buffer(spare), KernelOutput::Row)))
    }

    /// A sink for a value that is made of other fields: the row if given, else a buffer. Follow
    /// with [`FieldCell::moved`].
    #[inline]
    pub fn sink<'a>(&'a mut self, row: Option<&'a mut [u8]>) -> KernelOutput<'a> {
        // The value before it is replaced, in any place.
        self.place = CellStorage::Buffer { which: 1, bytes: 0 };
        row.map_or(KernelOutput::Buffer(&mut self.buffers[0]), KernelOutput::Row)
    }

    /// Records that the value has been replaced by `bytes` bytes in the sink of [`FieldCell::split`].
    #[inline]
    pub fn moved(&mut self, to_row: bool, bytes: usize) {
        self.place = match (&self.place, to_row) {
            (_, true) => CellStorage::Row,
            (CellStorage::Buffer { which: 0, .. }, _) => CellStorage::Buffer { which: 1, bytes },
            _ => CellStorage::Buffer { which: 0, bytes },
        };
    }

    /// The value for changing it in place, wherever it is; `row` is the row it may be in. What others
    /// read too, the record and what is held, is copied first.
    #[inline]
    pub fn value_mut<'a>(
        &'a mut self,
        record: &[u8],
        row: &'a mut [u8],
    ) -> Result<&'a mut [u8], String> {
        let [first, second] = &mut self.buffers;
        let shared = match &self.place {
            CellStorage::Buffer { which: 0, bytes } => return Ok(&mut first[..*bytes]),
            CellStorage::Buffer { bytes, .. } => return Ok(&mut second[..*bytes]),
            CellStorage::Row => return Ok(row),
            CellStorage::Record(range) => record.get(range.clone()).unwrap_or_default(),
            CellStorage::Held { level, range } => &self.held[*level][range.clone()],
        };
        let bytes = shared.len();
        grow(first, bytes)?;
        first[..bytes].copy_from_slice(shared);
        self.place = CellStorage::Buffer { which: 0, bytes };
        Ok(&mut first[..bytes])
    }

    /// Makes the value a part of itself. A value in a buffer keeps its start, others any part.
    #[inline]
    pub fn narrow(&mut self, start: usize, bytes: usize) {
        match &mut self.place {
            CellStorage::Record(range) | CellStorage::Held { range, .. } => {
                let start = range.start + start;
                *range = start..(start + bytes).min(range.end);
            }
            CellStorage::Buffer { bytes: held, .. } => *held = bytes.min(*held),
            CellStorage::Row => {}
        }
    }

    /// Puts the value aside, for several elements to start from.
    #[inline]
    pub fn hold(&mut self, level: usize) {
        let CellStorage::Buffer { which, bytes } = self.place else { return };
        if self.held.len() <= level {
            self.held.resize_with(level + 1, Vec::new);
        }
        std::mem::swap(&mut self.buffers[which], &mut self.held[level]);
        self.place = CellStorage::Held { level, range: 0..bytes };
    }

    /// The start of the value in the record, if it is there.
    #[inline]
    pub fn start_in_record(&self) -> Option<usize> {
        match &self.place {
            CellStorage::Record(range) => Some(range.start),
            _ => None,
        }
    }

    /// Makes a value that is a range of `text` one of its own; others stay as they are.
    pub fn own(&mut self, text: &[u8]) -> Result<(), String> {
        let CellStorage::Record(range) = &self.place else { return Ok(()) };
        let part = text.get(range.clone()).unwrap_or_default();
        grow(&mut self.buffers[0], part.len())?;
        self.buffers[0][..part.len()].copy_from_slice(part);
        self.place = CellStorage::Buffer { which: 0, bytes: part.len() };
        Ok(())
    }

    /// Takes over what was found in bytes that start at `start` of the record.
    pub fn adopt(&mut self, found: &mut FieldCell, start: usize) {
        self.size = found.size;
        self.place = match &found.place {
            CellStorage::Record(range) => {
                CellStorage::Record(start + range.start..start + range.end)
            }
            CellStorage::Buffer { which, bytes } => {
                std::mem::swap(&mut self.buffers[0], &mut found.buffers[*which]);
                CellStorage::Buffer { which: 0, bytes: *bytes }
            }
            // Nothing is held, nor delivered, before it is a field.
            CellStorage::Held { .. } | CellStorage::Row => CellStorage::Record(0..0),
        };
    }

    /// Makes the value the bytes that `fill` appends to an empty buffer.
    pub fn fill<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let buffer = &mut self.buffers[0];
        buffer.clear();
        fill(buffer)?;
        self.place = CellStorage::Buffer { which: 0, bytes: buffer.len() };
        Ok(())
    }
}

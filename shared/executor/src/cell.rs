//! Where the value of one field is while its element is being processed.

use std::ops::Range;

/// Which memory holds the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A range of the source record.
    Record(Range<usize>),
    /// The first bytes of one of the cell's own buffers.
    Buffer { which: usize, bytes: usize },
    /// The row of the batch that the value is delivered in.
    Row,
}

/// One field of the element in hand. Buffers grow to the largest value seen and are reused.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) place: Place,
    /// Height and width of an image.
    pub(crate) size: [usize; 2],
    buffers: [Vec<u8>; 2],
}

impl Default for Cell {
    fn default() -> Self {
        Cell { place: Place::Record(0..0), size: [0, 0], buffers: [Vec::new(), Vec::new()] }
    }
}

/// Where an operator writes its output.
pub(crate) enum Sink<'a> {
    Buffer(&'a mut Vec<u8>),
    Row(&'a mut [u8]),
}

impl<'a> Sink<'a> {
    /// `bytes` bytes to write all of; what they hold is old.
    pub(crate) fn take(self, bytes: usize) -> Result<&'a mut [u8], String> {
        match self {
            Sink::Buffer(buffer) => {
                if buffer.len() < bytes {
                    let more = bytes - buffer.len();
                    // A size taken from the input must not abort the process.
                    buffer
                        .try_reserve(more)
                        .map_err(|_| format!("there is no memory for {bytes} bytes"))?;
                    buffer.resize(bytes, 0);
                }
                Ok(&mut buffer[..bytes])
            }
            Sink::Row(row) if row.len() == bytes => Ok(row),
            Sink::Row(row) => {
                Err(format!("a row of {} bytes was given {bytes}: please report this", row.len()))
            }
        }
    }
}

impl Cell {
    /// The value as it is, and a sink for what replaces it: the row if given, else the buffer not
    /// in use. Follow with [`Cell::moved`].
    pub(crate) fn split<'a>(
        &'a mut self,
        record: &'a [u8],
        row: Option<&'a mut [u8]>,
    ) -> Result<(&'a [u8], Sink<'a>), String> {
        let [first, second] = &mut self.buffers;
        let (input, spare): (&[u8], &mut Vec<u8>) = match &self.place {
            Place::Record(range) => (record.get(range.clone()).unwrap_or_default(), first),
            Place::Buffer { which: 0, bytes } => (&first[..*bytes], second),
            Place::Buffer { bytes, .. } => (&second[..*bytes], first),
            Place::Row => return Err("a finished row was read: please report this".into()),
        };
        Ok((input, row.map_or(Sink::Buffer(spare), Sink::Row)))
    }

    /// Records that the value has been replaced by `bytes` bytes in the sink of [`Cell::split`].
    pub(crate) fn moved(&mut self, to_row: bool, bytes: usize) {
        self.place = match (&self.place, to_row) {
            (_, true) => Place::Row,
            (Place::Buffer { which: 0, .. }, _) => Place::Buffer { which: 1, bytes },
            _ => Place::Buffer { which: 0, bytes },
        };
    }

    /// The value for changing it in place, wherever it is; `row` is the row it may be in.
    pub(crate) fn value_mut<'a>(&'a mut self, row: &'a mut [u8]) -> Option<&'a mut [u8]> {
        match &self.place {
            Place::Record(_) => None,
            Place::Buffer { which, bytes } => Some(&mut self.buffers[*which][..*bytes]),
            Place::Row => Some(row),
        }
    }

    /// Makes the value the bytes that `fill` appends to an empty buffer.
    pub(crate) fn fill<E>(
        &mut self,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let buffer = &mut self.buffers[0];
        buffer.clear();
        fill(buffer)?;
        self.place = Place::Buffer { which: 0, bytes: buffer.len() };
        Ok(())
    }
}

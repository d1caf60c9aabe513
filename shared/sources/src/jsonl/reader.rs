//! JSON lines: text files with one JSON object (RFC 8259) a line.
//!
//! Lines end in LF or CRLF, the last may end with the file. Blank lines are no records; they are read
//! with the record after them, as JSON allows white space before a value.

mod extract;
mod value;

pub use extract::JsonlRecordReader;

use crate::{FileIndex, RecordScanner, SourceError, SourceLimits, file_index::BlankLines};

/// Builds the index of a file from its bytes, pushed in order in pieces of any size.
#[derive(Debug)]
pub(crate) struct JsonlScanner {
    limits: SourceLimits,
    index: FileIndex,
    /// Bytes since the last record ended.
    bytes: u64,
    /// Whether there is anything in the line at hand.
    begun: bool,
    blank_lines: BlankLines,
    /// How many were met, and how many of them are noted.
    blank: [u32; 2],
}

impl JsonlScanner {
    pub(crate) fn new(limits: SourceLimits) -> Self {
        let (index, blank_lines) = (FileIndex::new(0), BlankLines::default());
        JsonlScanner { limits, index, bytes: 0, begun: false, blank_lines, blank: [0; 2] }
    }

    /// Takes more of a line.
    fn take(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.bytes += bytes.len() as u64;
        self.begun |= !bytes.trim_ascii_start().is_empty();
        let most = self.limits.record_bytes;
        if self.bytes > u64::from(most) {
            Err(self.index.fault(&format!("its line has more than {most} bytes, the limit")))
        } else {
            Ok(())
        }
    }

    fn close(&mut self) -> Result<(), SourceError> {
        let [met, noted] = self.blank;
        if met > noted {
            self.blank_lines.add(self.index.len(), met);
            self.blank = [met; 2];
        }
        // In range: `take` compared it with a limit of this type.
        let pushed = self.index.push(self.bytes as u32, self.limits);
        pushed.map_err(|what| self.index.fault(&what))?;
        (self.bytes, self.begun) = (0, false);
        Ok(())
    }
}

impl RecordScanner for JsonlScanner {
    fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            self.take(&bytes[start..=end])?;
            start = end + 1;
            if self.begun {
                self.close()?;
            } else {
                self.blank[0] = self.blank[0].saturating_add(1);
            }
        }
        self.take(&bytes[start..])
    }

    fn records(&self) -> u32 {
        self.index.len()
    }

    fn stop(self: Box<Self>) -> FileIndex {
        self.index.blank_lines(self.blank_lines)
    }

    fn finish(mut self: Box<Self>) -> Result<FileIndex, SourceError> {
        if self.begun {
            self.close()?;
        }
        Ok(self.stop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(pieces: &[&[u8]]) -> Result<FileIndex, SourceError> {
        let mut builder =
            Box::new(JsonlScanner::new(SourceLimits { record_bytes: 40, records: 6 }));
        pieces.iter().try_for_each(|piece| builder.push(piece))?;
        builder.finish()
    }

    fn records(file: &str) -> Vec<&str> {
        let index = index(&[file.as_bytes()]).unwrap();
        let record = |i| index.byte_range(i, 1).unwrap();
        (0..index.len()).map(|i| &file[record(i).start as usize..record(i).end as usize]).collect()
    }

    #[test]
    fn records_are_the_lines_that_are_not_blank() {
        assert_eq!(records("{}\n{\"a\":1}\r\n{}"), ["{}\n", "{\"a\":1}\r\n", "{}"]);
        assert_eq!(records("\n \r\n{}\n\n\t\n{}\n \n\n"), ["\n \r\n{}\n", "\n\t\n{}\n"]);
        assert_eq!(records(""), [""; 0]);
        assert_eq!(records("\n \r\n"), [""; 0]);
        assert_eq!(records(" x"), [" x"]);
        let index = index(&[b"\n1\n \n\n2\n3\n\n4"]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|record| index.line(record)), [2, 5, 6, 8].map(Some));
        let again = FileIndex::decode(&index.encode(), &crate::jsonl::Jsonl.into());
        assert_eq!(again, Ok(index));
    }

    #[test]
    fn limits_name_record_and_offset() {
        let long = [b"{}\n".to_vec(), vec![b'x'; 41]].concat();
        let error = index(&[&long]).unwrap_err().to_string();
        assert_eq!(error, "record 1 at byte 3: its line has more than 40 bytes, the limit");
        let blank = index(&[&[b'\n'; 41]]).unwrap_err().to_string();
        assert!(blank.starts_with("record 0 at byte 0: "), "{blank}");
        let many = index(&[&b"1\n".repeat(7)]).unwrap_err().to_string();
        assert!(many.contains("the limit is 6 records a file"), "{many}");
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_index(
            file in "[ x\r\n]{0,60}", cuts in prop::collection::vec(0_usize..60, 0..6),
        ) {
            let file = file.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(file.len())).collect();
            cuts.extend([0, file.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &file[ends[0]..ends[1]]).collect();
            let whole = index(&[file]);
            prop_assert_eq!(index(&pieces), whole.clone());
            if let Ok(index) = whole {
                let text = str::from_utf8(file).unwrap();
                let lines = text.lines().filter(|line| !line.trim_ascii().is_empty());
                prop_assert_eq!(index.len() as usize, lines.count());
            }
        }
    }
}

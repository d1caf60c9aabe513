//! The header of a gzip member, read byte by byte. Source: RFC 1952, section 2.3.

/// First bytes of every member: magic and the one method there is.
pub(crate) const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// Bytes before the optional parts: magic, method, flags, time, extra flags, system.
const FIXED_BYTES: u32 = 10;
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// A header as far as it has been read.
#[derive(Debug, Default)]
pub(super) struct GzipHeader {
    /// Bytes seen of the part at hand.
    seen: u32,
    /// Which optional parts are still to come.
    flags: u8,
    part: Part,
    extra_bytes: u32,
    any: bool,
}

#[derive(Debug, Default)]
enum Part {
    #[default]
    Fixed,
    /// Two bytes of length, then as many bytes.
    Extra,
    /// Name or comment: up to a zero byte.
    Text,
    Crc,
}

impl GzipHeader {
    /// Whether nothing of it has been seen.
    pub(super) fn is_fresh(&self) -> bool {
        !self.any
    }

    /// Takes the next byte; true if it was the last.
    pub(super) fn push(&mut self, byte: u8) -> Result<bool, String> {
        self.any = true;
        let at = self.seen;
        self.seen += 1;
        let ended = match self.part {
            Part::Fixed => {
                match (at, MAGIC.get(at as usize)) {
                    (_, Some(magic)) if *magic != byte => {
                        return Err("a gzip member does not start as one".into());
                    }
                    (3, _) if byte & RESERVED != 0 => {
                        return Err("a gzip member has flags that nobody has defined".into());
                    }
                    (3, _) => self.flags = byte,
                    _ => {}
                }
                self.seen == FIXED_BYTES
            }
            Part::Extra => {
                if at < 2 {
                    self.extra_bytes |= u32::from(byte) << (8 * at);
                }
                self.seen >= 2 && self.seen == self.extra_bytes + 2
            }
            Part::Text => byte == 0,
            Part::Crc => self.seen == 2,
        };
        if !ended {
            return Ok(false);
        }
        self.seen = 0;
        let next = [(EXTRA, Part::Extra), (NAME, Part::Text), (COMMENT, Part::Text)];
        for (flag, part) in next.into_iter().chain([(HEADER_CRC, Part::Crc)]) {
            if self.flags & flag != 0 {
                self.flags &= !flag;
                self.part = part;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

//! Files that are compressed as a whole with gzip (RFC 1952).
//!
//! Deflate can only be read from where a block starts, with the 32 KiB before it at hand. Indexing
//! reads the file once and keeps up to 256 such points, so that a split costs its own bytes and on
//! average half the distance to the next point: less than 4 MiB of the unpacked file per GiB. Offsets
//! of records are those in the unpacked file. Where members were compressed separately, as bgzip does,
//! points need no window. Still, gzip costs a worker about 3 ms per unpacked MiB: plain files, or
//! images and zstd columns that are compressed by themselves, are cheaper.

mod inflate;

use crate::{FileFormat, varint};
use inflate::{GzipInflater, InflateStep, WINDOW_BYTES};
use std::ops::Range;

pub(crate) use inflate::MAGIC;

/// Most points of a file.
const MAX_POINTS: usize = 256;
/// Unpacked bytes between points, at least; doubled as often as there are too many.
const MIN_SPACING_BYTES: u64 = 1 << 20;
/// Most bytes of the points in a stored index.
pub(crate) const MAX_STORED_BYTES: usize = MAX_POINTS * (WINDOW_BYTES + 40) + 32;

/// Whether a file of `format` that starts with `head`, its first 12 bytes, is compressed.
pub(crate) fn is_gzip(head: &[u8], format: &FileFormat) -> bool {
    head.starts_with(&MAGIC) && !format.begins(head)
}

/// A place at which decompressing can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Point {
    /// Offset of the next byte in the file.
    packed: u64,
    /// Offset of the next byte in the unpacked file.
    unpacked: u64,
    /// How many bits of the byte before belong to the next block, and which; none where a member
    /// starts.
    bits: Option<(u8, u8)>,
    /// The bytes that the next blocks refer to.
    window: Vec<u8>,
}

/// The points of one file at which decompressing can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GzipAccessPoints {
    points: Vec<Point>,
    /// Bytes of the file.
    packed: u64,
}

/// Decompresses a file that is pushed in pieces, and collects its points.
#[derive(Debug)]
pub(crate) struct GzipUnpacker {
    inflater: GzipInflater,
    points: Vec<Point>,
    spacing: u64,
}

impl Default for GzipUnpacker {
    fn default() -> Self {
        let inflater = GzipInflater::new();
        let points = inflater.point().into_iter().collect();
        GzipUnpacker { inflater, points, spacing: MIN_SPACING_BYTES }
    }
}

impl GzipUnpacker {
    /// Takes the next bytes of the file; `give` gets what they unpack to.
    pub(crate) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        bad: impl Fn(String) -> E,
        mut give: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let at = self.inflater.packed();
            let step = self.inflater.step(&mut bytes);
            match step.map_err(|what| bad(format!("byte {at} of the gzip file: {what}")))? {
                InflateStep::Made(range) => give(self.inflater.made(range))?,
                InflateStep::Boundary => self.boundary(),
                InflateStep::Hungry => return Ok(()),
            }
        }
    }

    fn boundary(&mut self) {
        let last = self.points.last().map_or(0, |point| point.unpacked);
        if self.inflater.unpacked() < last + self.spacing {
            return;
        }
        self.points.extend(self.inflater.point());
        if self.points.len() > MAX_POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.spacing *= 2;
        }
    }

    /// Bytes of the unpacked file that are right for certain, if it turned out to be damaged, or to be cut.
    pub(crate) fn sound_bytes(&self, is_cut: bool) -> u64 {
        if is_cut { self.inflater.unpacked() } else { self.inflater.sound_bytes() }
    }

    /// The points of what has been pushed.
    pub(crate) fn stop(self) -> GzipAccessPoints {
        GzipAccessPoints { points: self.points, packed: self.inflater.packed() }
    }

    /// Checks that the file may end here.
    pub(crate) fn check_end(&self) -> Result<(), String> {
        if self.inflater.is_whole() {
            Ok(())
        } else {
            let packed = self.inflater.packed();
            Err(format!("the gzip file ends at byte {packed}: it is cut short"))
        }
    }
}

impl GzipAccessPoints {
    /// The bytes of the file that hold bytes `range` of the unpacked one.
    pub(crate) fn packed_range(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.before(range.start).map_or(0, |point| point.packed);
        let after = self.points.partition_point(|point| point.unpacked < range.end);
        start..self.points.get(after).map_or(self.packed, |point| point.packed)
    }

    fn before(&self, unpacked: u64) -> Option<&Point> {
        let after = self.points.partition_point(|point| point.unpacked <= unpacked);
        self.points.get(after.checked_sub(1)?)
    }

    /// Bytes `range` of the unpacked file, from the bytes that [`packed_range`](Self::packed_range)
    /// names.
    ///
    /// # Errors
    /// The damage that was found.
    pub(crate) fn unpack(&self, mut stored: &[u8], range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let Some(point) = self.before(range.start) else { return Ok(out) };
        let mut inflater = GzipInflater::resume(point);
        while inflater.unpacked() < range.end {
            let step = inflater.step(&mut stored).map_err(|what| format!("gzip: {what}"))?;
            match step {
                InflateStep::Made(made) => {
                    let end = inflater.unpacked();
                    let start = end - made.len() as u64;
                    let made = inflater.made(made);
                    // Both in range of what was made, which is less than a ring.
                    let from = range.start.clamp(start, end) - start;
                    let to = range.end.clamp(start, end) - start;
                    out.extend_from_slice(&made[from as usize..to as usize]);
                }
                InflateStep::Boundary => {}
                InflateStep::Hungry => {
                    let (have, end) = (inflater.unpacked(), range.end);
                    return Err(format!("gzip: it ends at unpacked byte {have}, before {end}"));
                }
            }
        }
        Ok(out)
    }

    /// About how many bytes of memory they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.points.iter().map(|point| size_of::<Point>() + point.window.len()).sum()
    }

    /// Appends the stored form: numbers as LEB128, each offset as what it adds to the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.packed);
        varint::put(out, self.points.len() as u64);
        let (mut packed, mut unpacked) = (0, 0);
        for point in &self.points {
            varint::put(out, point.packed - packed);
            varint::put(out, point.unpacked - unpacked);
            (packed, unpacked) = (point.packed, point.unpacked);
            match point.bits {
                None => out.push(8),
                Some((bits, held)) => {
                    out.extend([bits, held]);
                    varint::put(out, point.window.len() as u64);
                    out.extend_from_slice(&point.window);
                }
            }
        }
    }

    /// Reads the stored form off the start of `rest`.
    pub(crate) fn decode(rest: &mut &[u8]) -> Result<GzipAccessPoints, String> {
        let file_bytes = varint::take(rest)?;
        let count = varint::take(rest)?;
        if !(1..=MAX_POINTS as u64).contains(&count) {
            return Err(format!("it has {count} points of a gzip file"));
        }
        let mut points = Vec::with_capacity(count as usize);
        let (mut packed, mut unpacked) = (0_u64, 0_u64);
        for i in 0..count {
            packed = packed.saturating_add(varint::take(rest)?);
            unpacked = unpacked.saturating_add(varint::take(rest)?);
            if packed > file_bytes || (i == 0 && unpacked > 0) {
                return Err("a point does not lie in the gzip file".into());
            }
            let (bits, window) = match varint::byte(rest)? {
                8 => (None, Vec::new()),
                bits @ 0..8 => {
                    let held = varint::byte(rest)?;
                    if u32::from(held) >> bits != 0 {
                        return Err("a point of the gzip file has too many bits".into());
                    }
                    let bytes = usize::try_from(varint::take(rest)?).unwrap_or(usize::MAX);
                    if bytes > WINDOW_BYTES {
                        return Err("a point of the gzip file has too large a window".into());
                    }
                    (Some((bits, held)), varint::bytes(rest, bytes)?.to_vec())
                }
                _ => return Err("a point of the gzip file has too many bits".into()),
            };
            points.push(Point { packed, unpacked, bits, window });
        }
        Ok(GzipAccessPoints { points, packed: file_bytes })
    }
}

#[cfg(test)]
mod tests;

//! How many rows a page has whose header does not say: its repetition levels, of which a row's first is
//! 0. Source: "RLE/Bit-Packing Hybrid" of the Parquet format's encodings.

use crate::varint;

/// Rows that start in a page of `values` repetition levels of at most `max_level`; none if it starts
/// within a row. `bytes` is the unpacked page.
///
/// # Errors
/// If the levels are not whole.
pub(super) fn rows(bytes: &[u8], values: u64, max_level: i16) -> Result<Option<u64>, String> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a page is too short")?;
    let mut rest = rest;
    let mut levels = varint::bytes(&mut rest, u32::from_le_bytes(*length) as usize)?;
    let width = 16 - (max_level as u16).leading_zeros() as usize;
    let (mut seen, mut rows, mut starts) = (0, 0, true);
    while seen < values {
        let head = varint::take(&mut levels)?;
        if head & 1 == 0 {
            // One level, many times.
            let (low, high) = (varint::byte(&mut levels)?, width > 8);
            let level =
                u16::from(low) | if high { u16::from(varint::byte(&mut levels)?) << 8 } else { 0 };
            let run = (head >> 1).min(values - seen);
            if run == 0 {
                return Err("a page has a run of nothing".into());
            }
            starts &= seen > 0 || level == 0;
            rows += if level == 0 { run } else { 0 };
            seen += run;
        } else {
            // Groups of eight levels, packed from the lowest bit.
            let groups = usize::try_from(head >> 1).unwrap_or(usize::MAX);
            let packed = varint::bytes(&mut levels, groups.saturating_mul(width))?;
            if groups == 0 {
                return Err("a page has a run of nothing".into());
            }
            for i in 0..groups * 8 {
                if seen == values {
                    break;
                }
                let bit = |at: usize| packed[at / 8] >> (at % 8) & 1 == 1;
                let zero = !(i * width..(i + 1) * width).any(bit);
                starts &= seen > 0 || zero;
                rows += u64::from(zero);
                seen += 1;
            }
        }
    }
    Ok(starts.then_some(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(levels: &[u8]) -> Vec<u8> {
        [&(levels.len() as u32).to_le_bytes()[..], levels, b"definition levels, values"].concat()
    }

    #[test]
    fn rows_are_the_zeros_of_runs_and_of_packed_groups() {
        // Six times 0, then 0 1 1 0 1 0 0 0.
        let levels = page(&[12, 0, 3, 0b0001_0110]);
        assert_eq!(rows(&levels, 14, 1), Ok(Some(11)));
        // The last group is filled up.
        assert_eq!(rows(&levels, 9, 1), Ok(Some(7)));
        // Two bits each: 0 1 2 0 0 0 0 0.
        assert_eq!(rows(&page(&[3, 0b0010_0100, 0]), 4, 2), Ok(Some(2)));
        assert_eq!(rows(&page(&[4, 1, 4, 0]), 4, 1), Ok(None), "it starts within a row");
        assert_eq!(rows(&page(&[3, 0b0000_0001]), 8, 1), Ok(None));
        assert_eq!(rows(&page(&[]), 0, 1), Ok(Some(0)));
    }

    #[test]
    fn levels_that_end_too_soon_are_an_error() {
        for levels in [&[][..], &[12], &[0, 0], &[1], &[5, 0], &[0xff; 12]] {
            assert!(rows(&page(levels), 100, 1).is_err(), "{levels:?}");
        }
        assert!(rows(&[1, 2], 1, 1).is_err() && rows(&u32::MAX.to_le_bytes(), 1, 1).is_err());
    }
}

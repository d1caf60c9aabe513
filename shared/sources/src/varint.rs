//! Numbers as LEB128: seven bits a byte, the lowest first.

/// A u64 takes at most ten bytes of seven bits.
const MAX_BYTES: u32 = 10;

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number off the start of `rest`.
pub(crate) fn take(rest: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0_u64;
    for i in 0..MAX_BYTES {
        let byte = byte(rest)?;
        number |= u64::from(byte & 0x7f).checked_shl(7 * i).unwrap_or(0);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number does not end".into())
}

/// Takes a byte off the start of `rest`.
pub(crate) fn byte(rest: &mut &[u8]) -> Result<u8, String> {
    let (byte, after) = rest.split_first().ok_or("it is too short")?;
    *rest = after;
    Ok(*byte)
}

/// Takes `n` bytes off the start of `rest`.
pub(crate) fn bytes<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
    let (bytes, after) = rest.split_at_checked(n).ok_or("it is too short")?;
    *rest = after;
    Ok(bytes)
}

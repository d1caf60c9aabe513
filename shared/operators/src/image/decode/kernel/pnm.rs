//! PGM and PPM to RGB: binary or as text, of 8 or 16 bits.

use super::{checked_size, indices::StoredIndices};
use gristmill_kernel::KernelOutput;

/// Whether the first bytes are those of a PGM or PPM.
pub(super) fn is(bytes: &[u8]) -> bool {
    matches!(bytes, [b'P', b'2' | b'3' | b'5' | b'6', space, ..] if space.is_ascii_whitespace())
}

/// The words of a text without its comments.
struct Words<'a> {
    rest: &'a [u8],
}

impl Words<'_> {
    fn number(&mut self) -> Result<u32, String> {
        loop {
            match self.rest {
                [b'#', ..] => {
                    let end = self.rest.iter().position(|byte| *byte == b'\n');
                    self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
                }
                [byte, rest @ ..] if byte.is_ascii_whitespace() => self.rest = rest,
                _ => break,
            }
        }
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (word, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        number.ok_or_else(|| "bad PGM or PPM: a number is missing".into())
    }
}

/// Decodes the stored numbers of a file into `spare`; returns them with the file's largest value.
fn read<'a>(bytes: &[u8], spare: &'a mut Vec<u8>) -> Result<(StoredIndices<'a>, u32), String> {
    let [_, kind, ..] = bytes else { return Err("bad PGM or PPM: it is cut short".into()) };
    let samples = if matches!(kind, b'3' | b'6') { 3 } else { 1 };
    let mut words = Words { rest: &bytes[2..] };
    let (width, height, most) = (words.number()?, words.number()?, words.number()?);
    if !(1..=65_535).contains(&most) {
        return Err(format!("bad PGM or PPM: its largest number is {most}"));
    }
    let size = checked_size("PGM or PPM", height.into(), width.into())?;
    let wide = usize::from(most > 255);
    let count = size[0] * size[1] * samples;
    let is_text = matches!(kind, b'2' | b'3');
    // A number as text takes at least one byte, plus a separator.
    let least = if is_text { count } else { count << wide };
    if words.rest.len() < least {
        return Err("bad PGM or PPM: it is cut short".into());
    }
    let stored = KernelOutput::Buffer(spare).take(count << wide)?;
    if is_text {
        for to in stored.chunks_exact_mut(1 << wide) {
            let number = words.number()?.min(most) as u16;
            to.copy_from_slice(&number.to_be_bytes()[1 - wide..]);
        }
    } else {
        // The numbers follow a single space.
        let numbers = words.rest.get(1..=count << wide);
        stored.copy_from_slice(numbers.ok_or("bad PGM or PPM: it is cut short")?);
    }
    Ok((StoredIndices { size, bits: 8 << wide, samples, bytes: stored }, most))
}

/// Decodes into `output` and returns height and width.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let (StoredIndices { size, bits, samples, bytes }, most) = read(bytes, spare)?;
    let rgb = output.take(size[0] * size[1] * 3)?;
    let number = |at: usize| match bits {
        8 => u32::from(bytes[at]),
        _ => u32::from(u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]])),
    };
    // Rounds to eight bits, as Pillow does.
    let eight = |number: u32| match most {
        255 => number as u8,
        most => (f64::from(number.min(most)) / f64::from(most) * 255.0).round_ties_even() as u8,
    };
    for (at, to) in rgb.iter_mut().enumerate() {
        *to = eight(number(if samples == 3 { at } else { at / 3 }));
    }
    Ok(size)
}

/// Decodes the stored numbers of a grey file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    let (stored, _) = read(bytes, spare)?;
    match stored.samples {
        1 => Ok(stored),
        _ => Err(super::indices::no_colours("PPM")),
    }
}

//! Numbers written as decimal text, apart by white space or commas.

use crate::{Feature, FeatureDType, MAX_VALUES};
#[cfg(feature = "readers")]
use gristmill_kernel::FieldCell;

/// Longest word that a message shows.
const MAX_SHOWN: usize = 40;

/// Reads the numbers of a feature into `cell`; returns their bytes.
///
/// # Errors
/// The fault, to follow the name of the value.
#[cfg(feature = "readers")]
pub fn numbers(feature: &Feature, text: &[u8], cell: &mut FieldCell) -> Result<usize, String> {
    let text = str::from_utf8(text).map_err(|_| "is not text".to_owned())?;
    cell.fill(|buffer| read(feature, text, buffer).map(|_| ()))?;
    Ok(cell.place.bytes())
}

/// Puts what is read in place of a missing value into `cell`. Returns whether there is such.
#[cfg(feature = "readers")]
pub(crate) fn put_default(feature: &Feature, cell: &mut FieldCell) -> bool {
    let Some(text) = &feature.default else { return false };
    cell.fill(|buffer| read_value(feature, text, buffer)).is_ok()
}

/// Appends the value that `text` is of a feature: its bytes, or the numbers in it.
///
/// # Errors
/// As [`numbers`].
#[cfg(feature = "readers")]
pub(crate) fn read_value(feature: &Feature, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
    match feature.dtype {
        FeatureDType::Bytes => out.extend_from_slice(text.as_bytes()),
        _ => drop(read(feature, text, out)?),
    }
    Ok(())
}

/// Appends the numbers of a feature; returns how many.
///
/// # Errors
/// As [`numbers`].
pub(crate) fn read(feature: &Feature, text: &str, out: &mut Vec<u8>) -> Result<usize, String> {
    let most = feature.values().unwrap_or(MAX_VALUES as usize);
    let mut count = 0;
    let items = if text.trim().is_empty() { None } else { Some(text.split(',')) };
    for item in items.into_iter().flatten() {
        // A value that is missing from the middle of a list has no place to be left out of.
        if item.trim().is_empty() {
            return Err("lacks an item beside one of its commas".to_owned());
        }
        for word in item.split_whitespace() {
            count += 1;
            if count > most {
                return Err(format!("has more than {most} values"));
            }
            add(feature.dtype, word, out).ok_or_else(|| no_number(feature.dtype, word))?;
        }
    }
    feature.check_values(count)?;
    Ok(count)
}

/// The message on a word that [`add`] does not take.
pub(crate) fn no_number(dtype: FeatureDType, word: &str) -> String {
    let word: String = word.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect();
    format!("holds `{word}`, which is no {}", dtype.dtype())
}

/// `number`, unless it is infinite for digits that are beyond its type: `inf` may be meant.
fn meant<T>(number: T, is_infinite: bool, word: &str) -> Option<T> {
    (!is_infinite || !word.bytes().any(|byte| byte.is_ascii_digit())).then_some(number)
}

/// Appends the number that `word` is: the nearest f32 or f64, or a whole number exactly.
pub(crate) fn add(dtype: FeatureDType, word: &str, out: &mut Vec<u8>) -> Option<()> {
    match dtype {
        FeatureDType::I64 => out.extend(i64::try_from(whole(word)?).ok()?.to_le_bytes()),
        FeatureDType::U64 => out.extend(u64::try_from(whole(word)?).ok()?.to_le_bytes()),
        FeatureDType::F32 => {
            let number = word.parse::<f32>().ok()?;
            out.extend(meant(number, number.is_infinite(), word)?.to_le_bytes());
        }
        FeatureDType::F64 => {
            let number = word.parse::<f64>().ok()?;
            out.extend(meant(number, number.is_infinite(), word)?.to_le_bytes());
        }
        FeatureDType::Bytes => return None,
    }
    Some(())
}

/// The whole number that a text is, as `3`, `3.0` and `1e2` are; none for `1.5`, and beyond 128 bits.
fn whole(word: &str) -> Option<i128> {
    if let Ok(number) = word.parse::<i64>() {
        return Some(number.into());
    }
    let (digits, exponent) = match word.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i64>().ok()?),
        None => (word, 0),
    };
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let (before, after) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let written = format!("{before}{after}");
    if written.is_empty() || !written.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = written.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    // How many zeros follow the last digit that is none.
    let zeros = (written.len() - significant.len()) as i64 - after.len() as i64;
    let power = 10_i128.checked_pow(u32::try_from(exponent.checked_add(zeros)?).ok()?)?;
    let number = significant.parse::<i128>().ok()?.checked_mul(power)?;
    Some(if digits.starts_with('-') { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_numbers_are_those_whose_text_is_whole() {
        for (text, number) in [
            ("3", 3),
            ("+3.", 3),
            ("-3.000", -3),
            ("1e2", 100),
            ("1.25E+2", 125),
            ("12500e-2", 125),
            (".5e1", 5),
            ("-0", 0),
            ("0.0e-400", 0),
            ("18446744073709551615.0", u64::MAX.into()),
            ("-9223372036854775808e0", i64::MIN.into()),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in [
            "",
            ".",
            "e2",
            "1e",
            "1.5",
            "-1e-400",
            "1e400",
            "1e99999999999999999999",
            "nan",
            "inf",
            "0x10",
            "1_000",
            "9007199254740993.5",
            "+-1",
            "1.-5",
            "1e1.5",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_way_to_write_a_whole_number_is_that_number(
            number: i64, zeros in 0_usize..9, shift in 0_usize..30,
        ) {
            let (sign, digits) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
            let padded = format!("{digits:0>31}{}", "0".repeat(zeros));
            let (before, after) = padded.split_at(31 - shift);
            let text = format!("{sign}{before}.{after}e{shift}");
            prop_assert_eq!(whole(&text), Some(number.into()), "{}", text);
        }
    }
}

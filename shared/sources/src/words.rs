//! Numbers written as decimal text, apart by white space or commas.

use crate::{Feature, FeatureDType, MAX_VALUES};
use gristmill_kernel::FieldCell;

/// Reads the numbers of a feature into `cell`; returns their bytes.
///
/// # Errors
/// The fault, to follow the name of the value.
pub fn numbers(feature: &Feature, text: &[u8], cell: &mut FieldCell) -> Result<usize, String> {
    let text = str::from_utf8(text).map_err(|_| "is not text".to_owned())?;
    let separator = |c: char| c.is_whitespace() || c == ',';
    let words = text.split(separator).filter(|word| !word.is_empty());
    let most = feature.values().unwrap_or(MAX_VALUES as usize);
    cell.fill(|buffer| {
        let mut count = 0;
        for word in words {
            count += 1;
            if count > most {
                return Err(format!("has more than {most} values"));
            }
            add(feature.dtype, word, buffer).ok_or_else(|| {
                let word: String = word.chars().filter(|c| !c.is_control()).take(24).collect();
                format!("holds `{word}`, which is no {}", feature.dtype.dtype())
            })?;
        }
        feature.check_values(count)
    })?;
    Ok(cell.place.bytes())
}

/// `number`, unless it is infinite for digits that are beyond its type: `inf` may be meant.
fn meant<T>(number: T, is_infinite: bool, word: &str) -> Option<T> {
    (!is_infinite || !word.bytes().any(|byte| byte.is_ascii_digit())).then_some(number)
}

/// Appends the number that `word` is.
fn add(dtype: FeatureDType, word: &str, out: &mut Vec<u8>) -> Option<()> {
    match dtype {
        FeatureDType::I64 => out.extend(word.parse::<i64>().ok()?.to_le_bytes()),
        FeatureDType::U64 => out.extend(word.parse::<u64>().ok()?.to_le_bytes()),
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

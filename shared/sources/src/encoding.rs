//! Encodings of text that are not read: a text is UTF-8.

/// First bytes of a text that tell its encoding.
pub(crate) const HEAD_BYTES: usize = 4;

/// Checks the first bytes of a text, of which more may come.
///
/// # Errors
/// If they are those of another encoding: which, and what to do.
pub(crate) fn check(head: &[u8]) -> Result<(), String> {
    let name = match head {
        [0, 0, 0xfe, 0xff, ..] | [0xff, 0xfe, 0, 0, ..] => "UTF-32",
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => "UTF-16",
        // Without a mark: every other byte of ASCII is zero.
        [0, 1..=255, 0, 1..=255] | [1..=255, 0, 1..=255, 0] => "UTF-16",
        _ => return Ok(()),
    };
    Err(format!(
        "the text is {name}, and UTF-8 is read: convert it (iconv -f {name} -t UTF-8 OLD > NEW)"
    ))
}

#[cfg(test)]
mod tests {
    use crate::{FileFormat, IndexBuilder};

    fn encoded(text: &str, unit: impl Fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(unit).collect()
    }

    #[test]
    fn other_encodings_are_refused_by_name_however_the_bytes_come() {
        let text = "value,note\n1,a\n";
        let marked = format!("\u{feff}{text}");
        let wide = |text: &str| text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        let files: [(Vec<u8>, &str); 6] = [
            (encoded(&marked, u16::to_le_bytes), "UTF-16"),
            (encoded(&marked, u16::to_be_bytes), "UTF-16"),
            (encoded(text, u16::to_le_bytes), "UTF-16"),
            (encoded(text, u16::to_be_bytes), "UTF-16"),
            (wide(&marked), "UTF-32"),
            (encoded("\u{feff}a", u16::to_le_bytes), "UTF-16"),
        ];
        for (file, name) in files {
            for format in ["csv", "jsonl"].map(|name| FileFormat::with_defaults(name).unwrap()) {
                for size in [1, 3, 1000] {
                    let mut builder = IndexBuilder::new(&format).unwrap();
                    let pushed = file.chunks(size).try_for_each(|piece| builder.push(piece));
                    let error = pushed.err().or_else(|| builder.finish().err()).unwrap();
                    let error = error.to_string();
                    assert!(error.contains(&format!("the text is {name}")), "{file:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_mark_of_utf_8_is_no_other_encoding() {
        for text in ["\u{feff}value\n1\n", "value\n1\n", "a", "", "é\n1\n"] {
            let mut builder =
                IndexBuilder::new(&FileFormat::with_defaults("csv").unwrap()).unwrap();
            text.bytes().try_for_each(|byte| builder.push(&[byte])).unwrap();
            builder.finish().unwrap();
        }
    }
}

//! Text from outside, made displayable: bounded, on one line, in logical order. The template escapes
//! it.

/// Longest displayed text.
const CHARS_MAX: usize = 300;

/// `text` with at most 300 characters. Control characters, and those that change the text direction,
/// become U+FFFD.
pub(super) fn shown(text: &str) -> String {
    let plain = |c: char| if turns(c) || c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(CHARS_MAX).map(plain).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('\u{2026}');
    }
    shown
}

fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Upper bound of the width of `text` at 12 px in common fonts.
pub(super) fn width_px(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 7.2 } else { 13.0 }).sum()
}

/// "epoch 3", "epochs 3-9".
pub(super) fn epochs(first: u32, last: u32) -> String {
    if first == last { format!("epoch {first}") } else { format!("epochs {first}\u{2013}{last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_and_on_one_line() {
        assert_eq!(shown("a\nb\u{202e}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(shown(&"é".repeat(300)), "é".repeat(300));
        assert_eq!(shown(&"é".repeat(301)), "é".repeat(300) + "…");
    }
}

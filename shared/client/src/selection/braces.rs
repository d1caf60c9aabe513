//! Braces in paths, as in shells and WebDataset: `{a,b}`, `{000..146}`, `{0..10..2}`, `{a..d}`.

/// The character that begins a brace.
pub(crate) const MARK: char = '{';
/// Most paths of one pattern.
const MAX_PATHS: usize = 100_000;

/// Expands `text` to its paths, in order; to itself if it has no braces. A brace within `[..]`, or without
/// a comma or `..`, is literal.
///
/// # Errors
/// If there are too many.
pub(crate) fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut done = vec![String::new()];
    let mut rest = text;
    while let Some((before, choices, after)) = first(rest) {
        let mut words = Vec::new();
        for choice in &choices {
            words.extend(expand(choice)?);
        }
        if done.len().saturating_mul(words.len()) > MAX_PATHS {
            return Err(format!("its braces expand to more than {MAX_PATHS} paths"));
        }
        let join = |start: &String| {
            words.iter().map(|word| format!("{start}{before}{word}")).collect::<Vec<_>>()
        };
        done = done.iter().flat_map(join).collect();
        rest = after;
    }
    Ok(done.into_iter().map(|start| start + rest).collect())
}

/// The text before the first brace, its choices, and the text after it.
fn first(text: &str) -> Option<(&str, Vec<String>, &str)> {
    let mut at = 0;
    while let Some(found) = text[at..].find([MARK, '[']) {
        let start = at + found;
        if text[start..].starts_with('[') {
            // A character class, in which `]` may come first.
            let inner = text[start + 1..].trim_start_matches('!');
            let first = text.len() - inner.len();
            let skip = inner.chars().next().map_or(0, char::len_utf8);
            let end = text[first + skip..].find(']');
            at = end.map_or(start + 1, |end| first + skip + end + 1);
            continue;
        }
        if let Some((choices, after)) = choices(&text[start + 1..]) {
            return Some((&text[..start], choices, after));
        }
        at = start + 1;
    }
    None
}

/// The choices of a brace and the text after it; `text` starts after the opening brace.
fn choices(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].to_owned());
                start = at + 1;
            }
            '}' => {
                let last = &text[start..at];
                let after = &text[at + 1..];
                if parts.is_empty() {
                    return Some((sequence(last)?, after));
                }
                parts.push(last.to_owned());
                return Some((parts, after));
            }
            _ => {}
        }
    }
    None
}

/// `000..146`, `10..0..2`, `a..d`.
fn sequence(text: &str) -> Option<Vec<String>> {
    let parts: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match parts.as_slice() {
        [first, last] => (*first, *last, 1),
        [first, last, step] => (*first, *last, step.parse::<i64>().ok()?.unsigned_abs().max(1)),
        _ => return None,
    };
    let letter = |text: &str| match text.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(i64::from(*letter)),
        _ => None,
    };
    let count = |from: i64, to: i64| -> Vec<i64> {
        // One more than allowed, to detect too many.
        let far = (0..=from.abs_diff(to) / step).take(MAX_PATHS + 1);
        let step = i128::from(step);
        let sign = if to < from { -1 } else { 1 };
        far.map(|i| (i128::from(from) + sign * step * i128::from(i)) as i64).collect()
    };
    if let (Some(from), Some(to)) = (letter(first), letter(last)) {
        let letters = count(from, to).into_iter();
        return Some(letters.map(|c| char::from(c as u8).to_string()).collect());
    }
    let number = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<i64>().ok()).flatten()
    };
    let (from, to) = (number(first)?, number(last)?);
    let padded = [first, last].iter().any(|text| {
        let digits = text.trim_start_matches('-');
        digits.len() > 1 && digits.starts_with('0')
    });
    let width = if padded { first.len().max(last.len()) } else { 0 };
    Some(count(from, to).into_iter().map(|i| format!("{i:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        expand(text).unwrap()
    }

    #[test]
    fn braces_stand_for_what_a_shell_makes_of_them() {
        assert_eq!(
            expanded("a-{000..003}.tar"),
            ["a-000.tar", "a-001.tar", "a-002.tar", "a-003.tar"]
        );
        assert_eq!(expanded("{a,b}/x"), ["a/x", "b/x"]);
        assert_eq!(expanded("{8..11}"), ["8", "9", "10", "11"]);
        assert_eq!(expanded("{08..10}"), ["08", "09", "10"]);
        assert_eq!(expanded("{0..10..5}"), ["0", "5", "10"]);
        assert_eq!(expanded("{3..1}"), ["3", "2", "1"]);
        assert_eq!(expanded("{-1..1}"), ["-1", "0", "1"]);
        assert_eq!(expanded("{a..c}"), ["a", "b", "c"]);
        assert_eq!(expanded("{a,b{1..2}}-{x,}"), ["a-x", "a-", "b1-x", "b1-", "b2-x", "b2-"]);
        assert_eq!(expanded("{train,val}/*-[{]?"), ["train/*-[{]?", "val/*-[{]?"]);
        for same in ["x", "", "{}", "{a}", "a{b", "}{", "{1..b}", "[{a,b}]x", "[]{a,b}]"] {
            assert_eq!(expanded(same), [same]);
        }
        assert_eq!(expanded("{a{1,2}}"), ["{a1}", "{a2}"]);
    }

    #[test]
    fn there_are_not_too_many() {
        assert_eq!(expanded("{1..100000}").len(), 100_000);
        for many in ["{1..100001}", "{1..9223372036854775807}", "{1..1000}{1..1000}"] {
            assert!(expand(many).unwrap_err().contains("100000"), "{many}");
        }
    }
}

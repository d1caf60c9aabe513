//! Enums whose values people write as words.

/// The words of an enum's values, both ways. Errors say that a text is not `$what`.
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+ $(,)?) => {
        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let words = || [$($word),+].join(", ");
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!(concat!("{:?} is not ", $what, ": use one of {}"), text, words())),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

pub(crate) use words;

//! The part of a process's environment that decides what its workers may read.

use gristmill_model::Fingerprint;
use std::{env, ffi::OsString};

/// Credentials for web servers, and where TLS finds the authorities it trusts.
const NAMES: [&str; 3] = ["GRISTMILL_WEB_AUTHORIZATION", "SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Credentials and endpoints of AWS.
const PREFIX: &str = "AWS_";

/// Identifies this process's credentials without telling them: the worker processes of a service have those of the
/// process that started it.
pub fn credentials_id() -> String {
    id_of(env::vars_os())
}

fn id_of(variables: impl Iterator<Item = (OsString, OsString)>) -> String {
    let decides = |name: &str| name.starts_with(PREFIX) || NAMES.contains(&name);
    let chosen = variables.filter(|(name, _)| name.to_str().is_some_and(decides));
    let mut chosen: Vec<_> = chosen.collect();
    chosen.sort();
    Fingerprint::from_content("gristmill credentials v1", format!("{chosen:?}").as_bytes())
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_differ_by_what_workers_read_and_by_nothing_else() {
        let id = |variables: &[(&str, &str)]| {
            id_of(variables.iter().map(|(name, value)| (name.into(), value.into())))
        };
        let mine = id(&[("AWS_PROFILE", "a"), ("GRISTMILL_WEB_AUTHORIZATION", "h x")]);
        let same = [("RANK", "1"), ("GRISTMILL_WEB_AUTHORIZATION", "h x"), ("AWS_PROFILE", "a")];
        assert_eq!(mine, id(&same));
        assert_ne!(mine, id(&[("AWS_PROFILE", "b"), ("GRISTMILL_WEB_AUTHORIZATION", "h x")]));
        assert_ne!(mine, id(&[("AWS_PROFILE", "a")]));
    }
}

//! The part of a process's environment that decides what its workers may read.

use gristmill_model::Fingerprint;
use rustix::{fs::statvfs, io, process::geteuid};
use std::{env, ffi::OsString, path::Path};

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

/// CPU of a process so far in milliseconds, its children not included; 0 if it cannot be read.
pub fn process_cpu_ms(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // The name in parentheses may contain any character; count the fields after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    (ticks(11) + ticks(12)) * 1000 / per_second
}

/// Bytes that this user may still write on the disk of `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = statvfs(path)?;
    let blocks = if geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    Ok(blocks.saturating_mul(disk.f_frsize))
}

/// [`free_bytes`] for an error message.
pub fn free_space(path: &Path) -> String {
    match free_bytes(path) {
        Ok(bytes) => format!("{bytes} bytes free"),
        Err(error) => format!("its free space is unknown: {error}"),
    }
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

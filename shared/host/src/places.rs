//! The folders of state, of sockets and of the register of services on this machine.

use crate::{HostError, private::private_dir};
use gristmill_model::Fingerprint;
use rustix::{fs::statvfs, io, process::geteuid};
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Below a user's cache: the state of services that nobody named. The number changes with its format.
const STATE: &str = "service-2";
/// The same of versions before.
const STATE_BEFORE: &str = "service";
/// Below a user's cache: states that are removed at their end.
const TEMPORARY: &str = "temporary";
const SOCKET_BYTES_MAX: usize = 107;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory,
    /// Shared by machines: locks and sockets may not work across them.
    Network,
}

/// The state directory of the service that all processes of this user share. `kind` tells programs apart whose workers
/// differ; empty for gristmill's own. The error is that of the first candidate.
pub fn default_state_dir(kind: &str) -> Result<PathBuf, HostError> {
    let name = match kind {
        "" => STATE.to_owned(),
        kind => format!("{STATE}-{kind}"),
    };
    below_cache(&name)
}

/// The folder of states that are removed at their end.
pub fn temporary_states() -> Result<PathBuf, HostError> {
    below_cache(TEMPORARY)
}

/// The folder in which versions before kept their state, if it is there.
pub fn state_of_before(default: &Path) -> Option<PathBuf> {
    let before = default.with_file_name(STATE_BEFORE);
    before.is_dir().then_some(before)
}

/// A private folder on a disk of this machine, if there is one: homes may be read-only, or shared by machines.
fn below_cache(name: &str) -> Result<PathBuf, HostError> {
    let mut in_memory = None;
    let made = caches().into_iter().filter_map(|cache| match usable(&cache.join(name)) {
        Ok((dir, Medium::Disk)) => Some(Ok(dir)),
        Ok((dir, Medium::Memory)) => {
            in_memory.get_or_insert(dir);
            None
        }
        Ok((dir, Medium::Network)) => Some(Err(HostError::unusable(&dir, ON_NETWORK))),
        Err(error) => Some(Err(error)),
    });
    let on_disk = first(made, "name a --state-dir");
    on_disk.or_else(|error| in_memory.ok_or(error))
}

/// The first folder that could be made, or the first error.
fn first(
    made: impl Iterator<Item = Result<PathBuf, HostError>>,
    advice: &str,
) -> Result<PathBuf, HostError> {
    let mut failed = None;
    for made in made {
        match made {
            Ok(path) => return Ok(path),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let none = || HostError::Unusable(format!("no folder is writable: {advice}"));
    Err(failed.unwrap_or_else(none))
}

fn usable(dir: &Path) -> Result<(PathBuf, Medium), HostError> {
    let dir = private_dir(dir)?;
    rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK)
        .map_err(|error| HostError::at(&dir)(error.into()))?;
    let medium = medium(&dir)?;
    Ok((dir, medium))
}

const ON_NETWORK: &str = "it lies on a network file system, which other machines use too: name a directory on a disk \
                          of this machine";

pub(crate) fn refuse_network(dir: &Path) -> Result<(), HostError> {
    match medium(dir)? {
        Medium::Network => Err(HostError::unusable(dir, ON_NETWORK)),
        Medium::Disk | Medium::Memory => Ok(()),
    }
}

fn caches() -> Vec<PathBuf> {
    let own = format!("gristmill-{}", geteuid().as_raw());
    let home = || Some(absolute("HOME")?.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("gristmill"));
    let shared = [PathBuf::from("/var/tmp"), env::temp_dir()].map(|folder| folder.join(&own));
    cache.into_iter().chain(shared).collect()
}

fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(target_os = "linux")]
fn medium(dir: &Path) -> Result<Medium, HostError> {
    /// NFS, SMB, SMB2, CIFS, AFS, Coda, Ceph, Lustre, GPFS, BeeGFS, OrangeFS, from their `statfs` pages and sources.
    const NETWORK: [u32; 11] = [
        0x6969,
        0x517B,
        0xFE53_4D42,
        0xFF53_4D42,
        0x5346_414F,
        0x7375_7245,
        0x00C3_6400,
        0x0BD0_0BD0,
        0x4750_4653,
        0x1983_0326,
        0x2003_0528,
    ];
    /// tmpfs and ramfs.
    const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58F6];
    let about = rustix::fs::statfs(dir).map_err(|error| HostError::at(dir)(error.into()))?;
    let kind = about.f_type as u32;
    Ok(match kind {
        kind if NETWORK.contains(&kind) => Medium::Network,
        kind if MEMORY.contains(&kind) => Medium::Memory,
        _ => Medium::Disk,
    })
}

#[cfg(not(target_os = "linux"))]
fn medium(_: &Path) -> Result<Medium, HostError> {
    Ok(Medium::Disk)
}

/// Folders in which sockets and the register of this user's services may lie, the preferred one first.
fn run_dirs() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    let own = format!("gristmill-{user}");
    let session =
        absolute("XDG_RUNTIME_DIR").into_iter().chain([PathBuf::from(format!("/run/user/{user}"))]);
    let session = session.filter(|dir| dir.is_dir()).map(|dir| dir.join("gristmill"));
    let mut dirs: Vec<PathBuf> = session.collect();
    dirs.extend([env::temp_dir().join(&own), Path::new("/tmp").join(&own)]);
    dirs.extend(caches().into_iter().map(|cache| cache.join("run")));
    dirs.dedup();
    dirs
}

/// The folders of [`run_dirs`] that exist and are this user's.
pub(crate) fn known_run_dirs() -> Vec<PathBuf> {
    let existing = run_dirs().into_iter().filter(|dir| dir.is_dir());
    let mut found: Vec<_> = existing.filter_map(|dir| private_dir(&dir).ok()).collect();
    found.sort();
    found.dedup();
    found
}

/// The path, without an ending, of the socket and the entry in the register of the service on
/// `state_dir`. The error is that of the first candidate.
pub(crate) fn run_path(state_dir: &Path) -> Result<PathBuf, HostError> {
    let name =
        Fingerprint::from_content("gristmill service v1", state_dir.as_os_str().as_encoded_bytes())
            .to_string();
    let path = |dir: PathBuf| {
        let path = usable(&dir)?.0.join(&name[..16]);
        if path.as_os_str().len() + ".sock".len() > SOCKET_BYTES_MAX {
            let why = "the path is too long for a socket: set TMPDIR";
            return Err(HostError::unusable(&path, why));
        }
        Ok(path)
    };
    first(run_dirs().into_iter().map(path), "set TMPDIR")
}

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

/// The free space on the disk of `path`, for an error message.
pub fn free_space(path: &Path) -> String {
    match free_bytes(path).and_then(|bytes| Ok((bytes, statvfs(path)?))) {
        // Some file systems count no inodes.
        Ok((bytes, disk)) if bytes > 0 && disk.f_files > 0 && disk.f_favail == 0 => {
            format!("the disk has no inodes left, though {bytes} bytes are free: delete files")
        }
        Ok((bytes, _)) => format!("{bytes} bytes free"),
        Err(error) => format!("its free space is unknown: {error}"),
    }
}

#[cfg(test)]
mod environment_tests {
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

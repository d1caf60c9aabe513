//! How much memory this process may use.

use std::{
    fs,
    path::{Path, PathBuf},
};

const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process may use: the limit of its control groups, or what the machine has. None where neither is
/// known.
pub(crate) fn usable_bytes() -> Option<u64> {
    usable(|path| fs::read_to_string(path).ok())
}

fn usable(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let of_machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(files).filter_map(|file| read(&file)?.trim().parse().ok());
    limits.chain(of_machine).min()
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The files with the limits of a control group and of those that hold it, from a line such as `0::/a/b`.
fn files(line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (root, file) = if controllers.split(',').any(|controller| controller == "memory") {
        (Path::new(GROUPS).join("memory"), "memory.limit_in_bytes")
    } else if controllers.is_empty() {
        (PathBuf::from(GROUPS), "memory.max")
    } else {
        return Vec::new();
    };
    let group = root.join(group.trim_start_matches('/'));
    group.ancestors().take_while(|dir| dir.starts_with(&root)).map(|dir| dir.join(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       4000 kB\n");

    fn found(files: &[(&str, &str)]) -> Option<u64> {
        let all = files.iter().chain([&MACHINE]);
        let of = |path: &Path| all.clone().find(|(name, _)| path == Path::new(name));
        usable(|path| of(path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(found(&[]), Some(4_096_000));
        let second = ("/proc/self/cgroup", "0::/pod/app\n");
        let of_app = ("/sys/fs/cgroup/pod/app/memory.max", "max\n");
        assert_eq!(found(&[second, of_app]), Some(4_096_000));
        assert_eq!(found(&[second, of_app, ("/sys/fs/cgroup/pod/memory.max", "70\n")]), Some(70));
        assert_eq!(found(&[second, ("/sys/fs/cgroup/memory.max", "80\n")]), Some(80));
        let first = ("/proc/self/cgroup", "4:cpu,cpuacct:/a\n5:memory:/a\n");
        let limit = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "90\n");
        assert_eq!(found(&[first, limit]), Some(90));
        assert_eq!(found(&[first, ("/sys/fs/cgroup/memory.max", "80\n")]), Some(4_096_000));
    }

    #[test]
    fn a_machine_that_says_nothing_is_unknown() {
        assert_eq!(usable(|_| None), None);
    }
}

//! Another user of the machine puts directories, links, files and sockets wherever gristmill looks: nothing of theirs is
//! read, written, followed or answered. Needs root, to be two other users.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Each test has a victim of its own: they run at the same time, and end the services of theirs.
const VICTIMS: [u32; 2] = [65_531, 65_530];
const ATTACKER: u32 = 65_532;
const PRECIOUS: &[u8] = b"weights of three weeks";

/// A folder that all may write to, and the victim's home.
struct Machine {
    victim: u32,
    base: tempfile::TempDir,
    program: PathBuf,
}

impl Machine {
    fn new(victim: u32) -> Self {
        let base = tempfile::Builder::new().prefix("gm-users-").tempdir_in("/tmp").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        mode(base.path(), 0o755);
        let (tmp, home) = (base.path().join("t"), base.path().join("home"));
        fs::create_dir(&tmp).unwrap();
        mode(&tmp, 0o1777);
        fs::create_dir(&home).unwrap();
        fs::write(home.join("precious"), PRECIOUS).unwrap();
        fs::create_dir(home.join("folder")).unwrap();
        let records: String = (0..64).map(|n| format!("{{\"id\": {n}}}\n")).collect();
        fs::write(home.join("n.jsonl"), records).unwrap();
        let pipeline = "source: { jsonl: n.jsonl, features: { id: { dtype: i64 } } }\nops: [batch: { size: 8 }]\n";
        fs::write(home.join("p.yaml"), pipeline).unwrap();
        for path in ["", "precious", "folder", "n.jsonl", "p.yaml"] {
            chown(home.join(path), Some(victim), Some(victim)).unwrap();
        }
        // The build may lie where other users may not go.
        let program = base.path().join("gristmill");
        fs::copy(env!("CARGO_BIN_EXE_gristmill"), &program).unwrap();
        Self { victim, base, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// `gristmill` as the victim, with `home` as the home.
    fn run(&self, home: &Path, args: &[&str]) -> Output {
        let user = self.victim.to_string();
        let mut command = Command::new("setpriv");
        command.args([
            format!("--reuid={user}"),
            format!("--regid={user}"),
            "--clear-groups".to_owned(),
        ]);
        command.arg(&self.program).args(args).current_dir(self.path("home"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home)
            .env("TMPDIR", self.path("t"));
        command.output().unwrap()
    }

    fn train(&self, home: &Path, more: &[&str]) -> Output {
        self.run(home, &[&["run", "p.yaml", "--epochs", "1", "--step-time", "0ms"], more].concat())
    }

    /// Ends the victim's services, and checks that nothing happened to what must not be touched.
    fn check(&self, home: &Path, planted: &[PathBuf]) {
        self.run(home, &["ps", "--stop-all"]);
        let victims = self.path("home");
        assert_eq!(fs::read(victims.join("precious")).unwrap(), PRECIOUS);
        assert_eq!(fs::read_dir(victims.join("folder")).unwrap().count(), 0, "a link was followed");
        for path in planted.iter().filter(|path| path.is_dir() && !path.is_symlink()) {
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                let owner = fs::symlink_metadata(entry.path()).unwrap().uid();
                assert_eq!(
                    owner,
                    ATTACKER,
                    "{} was put into a foreign folder",
                    entry.path().display()
                );
            }
        }
    }
}

/// Gives `path`, and what lies in it, to the attacker.
fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// A folder of the attacker's with a link to the victim's file under every name that a service uses.
fn folder_of_links(at: &Path, victims: &Path) {
    fs::create_dir_all(at).unwrap();
    let files = [
        "service.lock",
        "clients.lock",
        "start.lock",
        "format",
        "address.json",
        "endpoint.json",
        "lock",
        "run.lock",
    ];
    for name in files {
        symlink(victims.join("precious"), at.join(name)).unwrap();
    }
    for name in ["objects", "table", "logs", "folders", "running", "0"] {
        symlink(victims.join("folder"), at.join(name)).unwrap();
    }
}

fn may_be_others() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    let can = is_root && Command::new("setpriv").arg("--version").output().is_ok();
    if !can {
        eprintln!("skipped: needs root and setpriv, to be other users");
    }
    can
}

#[test]
fn files_planted_by_another_user_are_not_used() {
    if !may_be_others() {
        return;
    }
    let victim = VICTIMS[0];
    let own = format!("gristmill-{victim}");
    for kind in ["folder", "link", "file", "socket"] {
        // With a home, and without one: then everything lies in folders that all may write to.
        for home in ["home", "none"] {
            let machine = Machine::new(victim);
            let victims = machine.path("home");
            let home = machine.path(home);
            let at = machine.path("t").join(&own);
            let _listener = match kind {
                "folder" => {
                    folder_of_links(&at, &victims);
                    for below in ["service-2", "temporary", "run", "gristmill"] {
                        folder_of_links(&at.join(below), &victims);
                    }
                    None
                }
                "link" => {
                    symlink(victims.join("folder"), &at).unwrap();
                    None
                }
                "file" => {
                    fs::write(&at, "x").unwrap();
                    None
                }
                _ => Some(UnixListener::bind(&at).unwrap()),
            };
            give(&at);
            let output = machine.train(&home, &[]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{kind}: {said}");
            machine.check(&home, &[at.clone(), at.join("service-2"), at.join("run")]);
            // A victim without a home has its state there.
            let _ = fs::remove_dir_all(format!("/var/tmp/{own}"));
            let _ = fs::remove_dir_all(format!("/tmp/{own}"));
        }
    }
}

#[test]
fn a_state_directory_of_another_user_is_refused() {
    if !may_be_others() {
        return;
    }
    let machine = Machine::new(VICTIMS[1]);
    let (victims, shared) = (machine.path("home"), machine.path("t"));
    let state = shared.join("state");
    folder_of_links(&state, &victims);
    let mine = shared.join("theirs");
    symlink(victims.join("folder"), &mine).unwrap();
    let socket = shared.join("listening.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    for path in [&state, &mine, &socket] {
        give(path);
    }
    for dir in [state.clone(), mine.clone(), state.join("below"), mine.join("below")] {
        let dir = dir.to_str().unwrap().to_owned();
        for args in [
            vec!["run", "p.yaml", "--epochs", "1", "--state-dir", &dir],
            vec!["up", "--state-dir", &dir],
            vec!["status", "j", "--state-dir", &dir],
            vec!["doctor", "--state-dir", &dir],
        ] {
            let output = machine.run(&victims, &args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {said}");
        }
    }
    let endpoint = format!("unix:{}", socket.display());
    let output = machine.train(&victims, &["--endpoint", &endpoint]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(listener.accept().is_err(), "somebody connected");
    machine.check(&victims, &[state]);
}

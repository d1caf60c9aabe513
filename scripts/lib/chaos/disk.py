"""A small disk under the state directory, filled and freed on request.

A mount namespace of this process's own holds it: nobody else sees the mount, and it goes with the last
process of the run, independently of this one.
"""

import ctypes
import os
import resource

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
DISK_BYTES = 256 << 20
STEP_BYTES = 1 << 20


def private_mounts():
    """A mount namespace of our own, as root or in a user namespace; whether there is one. Call it before any
    thread is started."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"),
                           ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0


def join_mounts(pid):
    """Enters the mount namespace of a process that has called `private_mounts`; whether it could."""
    libc, here = ctypes.CDLL(None, use_errno=True), os.getcwd()
    for kind in ("user", "mnt"):
        theirs = f"/proc/{pid}/ns/{kind}"
        if os.readlink(theirs) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        with open(theirs) as namespace:
            if libc.setns(namespace.fileno(), 0) != 0:
                return False
    os.chdir(here)
    return True


class Disk:
    """A tmpfs if mounts are possible, otherwise a limit on the file size of the writing processes."""

    def __init__(self, path, mounts):
        self.path = path
        path.mkdir(parents=True)
        self.ballast = path / "ballast"
        self.mounted = mounts and self.mount()
        self.limited = None

    def mount(self):
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={DISK_BYTES},mode=700".encode()
        return libc.mount(b"tmpfs", bytes(self.path), b"tmpfs", 0, options) == 0

    @property
    def kind(self):
        return "a tmpfs filled" if self.mounted else "RLIMIT_FSIZE of the service and its workers"

    def fill(self, writers=list):
        """Fills the disk. `writers` returns the processes that write to it."""
        if not self.mounted:
            self.limited = writers
            return self.limit(0)
        with open(self.ballast, "ab") as file:
            size = file.tell()
            step = STEP_BYTES
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2

    def free(self):
        self.ballast.unlink(missing_ok=True)
        if self.limited is not None:
            # Workers that were started meanwhile have the service's limit.
            self.limit(resource.RLIM_INFINITY)
            self.limited = None

    def limit(self, soft):
        for pid in self.limited():
            try:
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
            except (OSError, ValueError):
                pass  # it is dead: its successor has no limit

    def close(self):
        self.free()
        if self.mounted:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.umount2(bytes(self.path), 2)  # MNT_DETACH

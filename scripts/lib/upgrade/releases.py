"""The release before: which commit it is, and its program."""

import pathlib
import re
import shutil
import subprocess
import tempfile

# Files that have had the protocol's version, newest first.
VERSION_FILES = ("shared/model/src/wire/protocol.rs", "shared/model/src/wire.rs")
VERSION = re.compile(r"^pub const VERSION: u32 = (\d+);", re.MULTILINE)


class NoRelease(Exception):
    """There is no commit of another protocol version."""


class NoTool(Exception):
    """A tool is missing."""


def git(root, *args):
    done = subprocess.run(["git", "-C", root, *args], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def version_at(root, commit):
    """The protocol version of a commit; None if no file has it."""
    for path in VERSION_FILES:
        text = git(root, "show", f"{commit}:{path}")
        found = VERSION.search(text or "")
        if found:
            return int(found[1])
    return None


def candidates(root):
    """Commits that may be of another version: tags, then those before each change of the version, newest first."""
    yield from (git(root, "tag", "--merged", "HEAD", "--sort=-creatordate") or "").split()
    pattern = "^pub const VERSION: u32"
    changes = git(root, "log", "--format=%H", f"-G{pattern}", "HEAD", "--", *VERSION_FILES) or ""
    yield from (f"{commit}^" for commit in changes.split())


def before(root):
    """The newest commit of another protocol version."""
    own = version_at(root, "HEAD")
    if own is None:
        raise NoRelease("this is no checkout that has a protocol version")
    for commit in candidates(root):
        if version_at(root, commit) not in (None, own):
            return commit
    is_shallow = (git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
    why = "this checkout is shallow" if is_shallow else "its history has none"
    raise NoRelease(f"no commit has a protocol version other than {own}: {why}")


def built(root, commit, target):
    """The program of `commit`, or of the release before, built below `target`."""
    for tool in ("git", "cargo"):
        if shutil.which(tool) is None:
            raise NoTool(f"{tool} is needed to build the old program, or name it with --old")
    commit = commit or before(root)
    version = version_at(root, commit)
    if version is None:
        raise NoRelease(f"{commit} is not in this checkout")
    print(f"old: {commit}, protocol version {version}; it is built below {target}", flush=True)
    tree = pathlib.Path(tempfile.mkdtemp(prefix="gristmill-old-"))
    subprocess.run(["git", "-C", root, "worktree", "add", "--detach", "--force", tree, commit], check=True)
    try:
        build = ["cargo", "build", "--release", "--locked", "--target-dir", target.resolve()]
        subprocess.run(build, cwd=tree, check=True)
    finally:
        subprocess.run(["git", "-C", root, "worktree", "remove", "--force", tree], check=False)
    return target / "release" / "gristmill"

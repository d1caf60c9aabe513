"""A virtual environment for each peer, of exactly the packages that its list in peers/environments pins."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from bench.programs import Failed

LIBRARY = pathlib.Path(__file__).resolve().parent.parent
LISTS = LIBRARY / "peers" / "environments"
# Variables of the peers' programs.
VARIABLES = {
    "PYTHONPATH": str(LIBRARY), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2",
}
# Imports that verify an environment, in the order of setup.
IMPORTS = {
    "tf": "import tensorflow",
    "dali": "import nvidia.dali.fn",
    "torch": "import tokenizers, torch, torchvision.transforms.v2",
    "grain": "import cv2, grain, tokenizers",
    "datasets": "import datasets, tokenizers",
}


def cores():
    return len(os.sched_getaffinity(0))


def python(work, name):
    return work / name / "bin" / "python"


def installed(work, name):
    return python(work, name).exists() and marker(work, name).exists()


def marker(work, name):
    """Is there once all of the list is installed; another list has another."""
    digest = hashlib.sha256((LISTS / f"{name}.txt").read_bytes()).hexdigest()
    return work / name / f"installed-{digest[:16]}"


def set_up(work, name, say):
    """Installs what is not installed, package by package: an interrupted run's are there already."""
    if installed(work, name):
        return
    environment = work / name
    if any(environment.glob("installed-*")):
        shutil.rmtree(environment)  # It is of another list.
    run([sys.executable, "-m", "venv", environment])
    install = [python(work, name), "-m", "pip", "install", "--no-input", "--require-hashes", "--no-deps"]
    install += ["--only-binary", ":all:", "-r", "/dev/stdin"]
    packages = requirements(name)
    for place, (package, requirement) in enumerate(packages, 1):
        say(f"{name}: package {place} of {len(packages)}, {package}")
        run(install, requirement)
    run([python(work, name), "-c", IMPORTS[name]])
    marker(work, name).touch()


def install_source(work, folder):
    """The Python of an environment into which the package in a folder is installed anew."""
    environment = work / "gristmill"
    shutil.rmtree(environment, ignore_errors=True)
    run([sys.executable, "-m", "venv", environment])
    run([python(work, "gristmill"), "-m", "pip", "install", "--no-input", folder])
    return python(work, "gristmill")


def requirements(name):
    """(name==version, its requirement with hashes) of each package of a list."""
    found = []
    for line in (LISTS / f"{name}.txt").read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            found.append((line.split()[0], []))
        if found and not line.strip().startswith("#"):
            found[-1][1].append(line)
    return [(package, "\n".join(lines) + "\n") for package, lines in found]


def run(command, text=""):
    """Runs a command; Failed, with what pip calls its error or else the last words, if it does."""
    command = list(map(str, command))
    done = subprocess.run(
        command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        start_new_session=True,
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        raise Failed([f"{command[0]} ended with {done.returncode}", *lines, *errors][-1])

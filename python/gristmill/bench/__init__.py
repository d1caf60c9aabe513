"""Measurements of this package on this machine: `python -m gristmill.bench --help`."""

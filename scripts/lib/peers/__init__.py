"""One program per peer. Each runs in the peer's own environment, as `python -m peers.NAME`."""

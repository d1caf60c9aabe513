"""One program a peer. Each runs in the peer's own environment, as `python -m peers.NAME`."""

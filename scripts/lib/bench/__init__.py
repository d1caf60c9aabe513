"""Peers on the same work: see scripts/bench-peers."""

"""Benchmarks against peers: see scripts/bench-peers."""

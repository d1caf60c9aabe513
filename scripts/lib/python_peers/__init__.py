"""Cases that other projects test their loaders with, run on those of gristmill. See scripts/test-python-peers."""

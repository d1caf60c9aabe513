"""The parts of scripts/chaos: faults for real processes, and the books that are kept of them."""

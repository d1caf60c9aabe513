"""The parts of scripts/chaos: faults for real processes, and a ledger of their effects."""

"""The federation: stacked client state, mixing, rounds, communication ledger, run directory."""

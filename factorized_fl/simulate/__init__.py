"""Many clients on one machine: from a configuration to a finished run directory."""

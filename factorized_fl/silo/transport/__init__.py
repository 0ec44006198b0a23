"""How messages cross the network: the engine behind an interface."""

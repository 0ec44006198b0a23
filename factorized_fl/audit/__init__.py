"""An audit of a simulated run: how well attacks work on exactly what each party saw."""

"""Studies made with the package; they are part of its source tree and not of the installed package."""

"""``python -m factorized_fl`` runs the command line where `ffl` is not on the path."""

from factorized_fl.cli import main

main()

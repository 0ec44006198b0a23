"""``python -m factorized_fl.cli``, for where the command is not installed."""

from factorized_fl.cli import main

main()

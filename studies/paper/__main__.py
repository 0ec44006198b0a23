"""`python -m studies.paper`."""

from studies.paper.command import main

main()

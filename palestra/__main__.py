"""`python -m palestra`: the command line."""

from palestra.cli import main

main()

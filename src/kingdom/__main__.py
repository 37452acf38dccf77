"""`python -m kingdom` is the same as `kingdom`."""

from kingdom.cli.main import main

main()

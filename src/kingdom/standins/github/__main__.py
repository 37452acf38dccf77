"""The GitHub stand-in as a program."""

from kingdom.standins.github.application import build_github
from kingdom.standins.server import run_as_program

if __name__ == "__main__":
    run_as_program("github", build_github)

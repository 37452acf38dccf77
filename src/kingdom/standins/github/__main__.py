"""Run the stand-in for GitHub: `python -m kingdom.standins.github --state FILE [--port N]`."""

from kingdom.standins.github.application import build_github
from kingdom.standins.server import run_as_program

if __name__ == "__main__":
    run_as_program("github", build_github)

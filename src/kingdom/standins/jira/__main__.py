"""Run the stand-in for Jira: `python -m kingdom.standins.jira --state FILE [--port N]`."""

from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import run_as_program

if __name__ == "__main__":
    run_as_program("jira", build_jira)

"""Run the stand-in for Slack: `python -m kingdom.standins.slack --state FILE [--port N]`."""

from kingdom.standins.server import run_as_program
from kingdom.standins.slack.application import build_slack

if __name__ == "__main__":
    run_as_program("slack", build_slack)

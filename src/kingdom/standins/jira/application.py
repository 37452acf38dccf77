"""The server of the Jira stand-in."""

from pathlib import Path

from aiohttp import web

from kingdom.standins.jira import control, rest_api
from kingdom.standins.jira.tickets import empty_state, ensure_user
from kingdom.standins.server import new_application
from kingdom.standins.state_file import StateFile

EMAIL = "kingdom@example.com"
TOKEN = "a-jira-token"  # noqa: S105 - opens nothing but a stand-in
ACCOUNT_ID = "712020:kingdom"


def build_jira(state: Path, *, email: str = EMAIL, token: str = TOKEN) -> web.Application:
    """Return a Jira server with one account and its state in a file."""
    state_file = StateFile(state, empty_state())
    if state_file.state["users"].get(ACCOUNT_ID, {}).get("emailAddress") != email:
        with state_file.change():
            ensure_user(state_file, ACCOUNT_ID, "Kingdom", email)
    application = new_application(state_file)
    application[rest_api.ACCOUNT] = rest_api.JiraAccount(ACCOUNT_ID, email, token)
    rest_api.add_routes(application)
    control.add_routes(application)
    return application

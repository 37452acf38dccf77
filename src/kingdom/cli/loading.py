"""Loads the commands of one noun; the imports are local, so that no other noun is loaded with it."""

import typer


def load_app(noun: str) -> typer.Typer:
    """Import the module of a noun and return its commands."""
    for load in (_load_first_steps, _load_daily, _load_runs, _load_court, _load_machines):
        if app := load(noun):
            return app
    raise KeyError(noun)


def _load_first_steps(noun: str) -> typer.Typer | None:
    match noun:
        case "demo":
            from kingdom.cli.demo.commands import app
        case "init":
            from kingdom.cli.setup.init import app
        case "doctor":
            from kingdom.cli.setup.doctor import app
        case "config":
            from kingdom.cli.setup.config import app
        case "github":
            from kingdom.cli.setup.github import app
        case "up":
            from kingdom.cli.up.commands import app
        case _:
            return None
    return app


def _load_daily(noun: str) -> typer.Typer | None:
    match noun:
        case "status":
            from kingdom.cli.court.status import app
        case "top":
            from kingdom.cli.top.commands import app
        case "ps":
            from kingdom.cli.court.ps import app
        case "show":
            from kingdom.cli.lookup.show import app
        case "logs":
            from kingdom.cli.logs.commands import app
        case "why":
            from kingdom.cli.lookup.why import app
        case "explain":
            from kingdom.cli.explain.commands import app
        case "inbox":
            from kingdom.cli.court.inbox import app
        case "answer":
            from kingdom.cli.court.answer import app
        case _:
            return None
    return app


def _load_runs(noun: str) -> typer.Typer | None:
    match noun:
        case "workflow":
            from kingdom.cli.workflow.commands import app
        case "attach":
            from kingdom.cli.attach.commands import app
        case "template":
            from kingdom.cli.resources.template import app
        case "git":
            from kingdom.cli.resources.git import app
        case "mcp":
            from kingdom.cli.resources.mcp import app
        case _:
            return None
    return app


def _load_court(noun: str) -> typer.Typer | None:
    match noun:
        case "general":
            from kingdom.cli.general.commands import app
        case "event":
            from kingdom.cli.event.commands import app
        case "assignment":
            from kingdom.cli.court.assignment import app
        case "petition":
            from kingdom.cli.court.petition import app
        case "followup":
            from kingdom.cli.court.followup import app
        case "cost":
            from kingdom.cli.court.cost import app
        case "simulate":
            from kingdom.cli.court.simulate import app
        case _:
            return None
    return app


def _load_machines(noun: str) -> typer.Typer | None:
    match noun:
        case "bus":
            from kingdom.cli.bus.commands import app
        case "storage":
            from kingdom.cli.bus.storage import app
        case "host":
            from kingdom.cli.machine.host import app
        case "role":
            from kingdom.cli.machine.role import app
        case "web":
            from kingdom.cli.web.commands import app
        case "agent-mcp":
            from kingdom.cli.machine.agent_mcp import app
        case "completion":
            from kingdom.cli.completion.commands import app
        case _:
            return None
    return app

"""The command `kingdom`: finds the noun that is asked for, and turns every error of ours into a sentence."""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kingdom.cli import exit_code
from kingdom.errors import KingdomError, Misconfigured, Unavailable

# Each noun is a module beside this one, loaded only when it is used, so that help comes at once.
_NOUNS = {
    "demo": "See it work in two minutes, in a throwaway directory: a review, a question, kills, recovery.",
    "init": "Make a realm to start from: settings, a General, and what to do next.",
    "doctor": "Look for everything that can be wrong here, and tell how to put it right.",
    "up": "Run every role of the court on this machine, until stopped.",
    "status": "Show how the court stands, and what needs a person.",
    "logs": "What the agents of a run were asked, said and did.",
    "attach": "Watch a run in a terminal of its own: its agent, and the files it changes.",
    "workflow": "Runs: create, start, watch, pause, resume, look at what they left.",
    "general": "The Generals: who does what when, as YAML files.",
    "inbox": "The questions that wait for a person.",
    "answer": "Answer a question of an assignment.",
    "petitions": "What agents asked for and what left the house: list, show.",
    "event": "What happened outside: list, show, send, route anew.",
    "why": "Explain where an event is and what holds it there.",
    "explain": "Tell what became of something, from the event outside to the result.",
    "simulate": "Show what other rules would have decided about past events.",
    "template": "Templates: what runs are made from, as YAML files.",
    "git": "The repositories that runs may use.",
    "mcp": "The MCP servers that agents may call.",
    "host": "The machines that run agents.",
    "agent-mcp": "Offer an agent its tools over MCP; agents start it themselves.",
    "engine": "Take every run its next step, until stopped; with --host run agents too.",
    "role": "Play one role of the court in this process, until stopped.",
    "config": "The file of settings: check it, or print one to start from.",
    "bus": "The durable event bus: publish, work, look, repair.",
    "storage": "The store behind it: move everything to another one.",
}


class _Nouns(TyperGroup):
    """Shows a placeholder for each noun in the help; brings the real one when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the command to run, its module imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in _NOUNS:
            command = typer.main.get_command(import_module(f"kingdom.cli.{name.replace('-', '_')}").app)
        return name, command, rest


app = typer.Typer(cls=_Nouns, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _words in _NOUNS.items():
    app.add_typer(typer.Typer(help=_words), name=_name)


def _print_version(value: bool) -> None:  # noqa: FBT001 - the form that typer calls
    if value:
        typer.echo(f"kingdom {version('kingdom')}")
        raise typer.Exit


@app.callback()
def _kingdom(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Kingdom runs AI coding agents on a durable event bus.

    Exit codes: 0 done, 1 it failed or was not found, 2 wrong usage or settings, 3 the store cannot be reached, 4 a run
    waits for a person.
    """


def main() -> None:
    """Run the command line; an error of ours ends in one sentence and an honest exit code."""
    try:
        app(prog_name="kingdom")
    except Unavailable as error:
        _end(error, exit_code.UNREACHABLE)
    except Misconfigured as error:
        _end(error, exit_code.USAGE)
    except KingdomError as error:
        _end(error, exit_code.FAILED)
    except ModuleNotFoundError as error:
        if error.name not in ("psycopg", "psycopg_pool"):
            raise
        _end("the driver of PostgreSQL is not installed: pip install 'kingdom[postgres]'", exit_code.USAGE)


def _end(words: object, code: int) -> None:
    typer.echo(f"kingdom: {' '.join(str(words).split())}", err=True)
    sys.exit(code)

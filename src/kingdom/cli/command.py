"""What every command has in common: how it reaches the store, how it answers, how it ends."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.app import Application
from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.logs import configure_logs
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.stream import OpenTopology, Stream
from kingdom.cli.application import load_application
from kingdom.cli.output import Output
from kingdom.settings import DEFAULT_URL, Settings

P = ParamSpec("P")
# An operator's command does one thing at a time.
_FEW_CONNECTIONS = 2
# Its reader is loaded only where there is one, so that help comes at once.
_REALM_FILE = "kingdom.yaml"


@dataclass(frozen=True, slots=True)
class Call:
    """One use of the command line: the settings it was given and where its answer goes."""

    settings: Settings
    output: Output

    def application(self) -> Application | None:
        """Return the application that was named by --app or KINGDOM_APP, if any."""
        return load_application(self.settings.application) if self.settings.application else None

    def in_realm(self, database_url: str) -> "Call":
        """Return the same call in the store that a file of settings names, unless a person has named one."""
        if not database_url or self.settings.store_is_named:
            return self
        return replace(self, settings=replace(self.settings, database_url=database_url))

    @asynccontextmanager
    async def bus(
        self,
        application: Application,
        *,
        connections: int = _FEW_CONNECTIONS,
        idle_limit: timedelta = timedelta(seconds=30),
        create: bool = True,
    ) -> AsyncIterator[Bus]:
        """Open the bus with the declarations of an application."""
        settings = self.settings
        async with open_bus(
            settings.database_url,
            application.topology,
            application.kinds,
            schema=settings.schema,
            connections=connections,
            idle_limit=idle_limit,
            through_pgbouncer=settings.through_pgbouncer,
            listen_url=settings.listen_url,
            create=create,
        ) as bus:
            yield bus

    @asynccontextmanager
    async def operations(self, *streams: str) -> AsyncIterator[Operations]:
        """Open the operator's port; the named streams must be declared, if there is an application to ask."""
        application = self.application() or undeclared()
        for stream in streams:
            application.topology.stream(stream)
        async with self.bus(application, create=False) as bus:
            yield operations_of(bus)


def undeclared(*, ordered: bool = False) -> Application:
    """Return what an operator works with who has no application at hand: any stream, no handlers."""
    return Application(
        topology=OpenTopology(Stream(name="undeclared", ordered=ordered)), dispatcher=Dispatcher(), kinds=()
    )


def command(
    app: typer.Typer, name: str, *, json_flags: tuple[str, ...] = ("--json",)
) -> Callable[[Callable[Concatenate[Call, P], Coroutine[Any, Any, int | None]]], None]:
    """Register an async command; it gets a Call, the user gets the options that all commands have."""

    def register(function: Callable[Concatenate[Call, P], Coroutine[Any, Any, int | None]]) -> None:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            shared = {key: given.pop(key) for key in ("database_url", "schema", "application")}
            call = Call(_settings(**shared), Output(json=given.pop("as_json")))
            # Standard output is for the answer alone.
            configure_logs(json=call.output.json, level=logging.WARNING)
            code = asyncio.run(function(call, **given))  # type: ignore[call-arg]
            if code:
                raise typer.Exit(code)

        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        # The terminal breaks lines at its own width.
        # A bracket is the shape of an answer here, no markup.
        run.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("[", "\\[")
        every = [*own, *_shared_options(json_flags)]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        )
        app.command(name)(run)

    return register


def _settings(**given: str | None) -> Settings:
    """Return the settings; where nobody names a store, it is that of the file of settings of this directory."""
    settings = Settings.read(**given)
    file = Path(_REALM_FILE)
    if settings.store_is_named or not file.exists():
        return settings
    url: str = import_module("kingdom.realm").store_named_in(file)
    return replace(settings, database_url=url or DEFAULT_URL)


def _shared_options(json_flags: tuple[str, ...]) -> list[inspect.Parameter]:
    def option(*flags: str, text: str) -> Any:
        return typer.Option(*flags, help=text, rich_help_panel="Common options", show_default=False)

    url = (
        "Where the store is: file:DIRECTORY or postgresql://…; else KINGDOM_DATABASE_URL, DATABASE_URL, the one that"
        " kingdom.yaml names, file:realm."
    )
    schema = "The schema in it; else KINGDOM_SCHEMA, else kingdom."
    application = "MODULE:OBJECT that declares the streams; else KINGDOM_APP, else every stream is accepted."

    def shared(
        *,
        database_url: Annotated[str | None, option("--database-url", text=url)] = None,
        schema: Annotated[str | None, option("--schema", text=schema)] = None,
        application: Annotated[str | None, option("--app", text=application)] = None,
        as_json: Annotated[bool, option(*json_flags, text="Answer in JSON.")] = False,
    ) -> None: ...

    return list(inspect.signature(shared).parameters.values())

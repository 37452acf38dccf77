"""What every command shares: its options, its access to the store and its registration."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args

import typer

from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.app import Application
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.record import Record, read_documents
from kingdom.bus.stream import OpenTopology, Stream
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.application import load_application
from kingdom.cli.framework.json_result import JsonResult
from kingdom.cli.framework.output import CommandOutput
from kingdom.errors import NotFound, Unreadable
from kingdom.log_output import configure_logs
from kingdom.settings import FILE, Settings, find_realm_file

if TYPE_CHECKING:
    from kingdom.realm import Realm

P = ParamSpec("P")
T = TypeVar("T")
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show only this many of the newest.")]
# A command uses the store for one thing at a time, so it needs few connections.
_FEW_CONNECTIONS = 2


@dataclass(frozen=True)
class CommandCall:
    """One call of a command: its output, and in `given` the options that all commands have."""

    output: CommandOutput
    given: Mapping[str, Any]
    _unreadable: set[str] = field(default_factory=set, init=False)

    @cached_property
    def settings(self) -> Settings:
        """Return the settings. They are read on first use, because not every command needs a store."""
        return settings_of(**self.given)

    @cached_property
    def realm(self) -> "Realm":
        """Return the realm of the settings file, without its secrets."""
        # Imported on use, so that help is fast.
        from kingdom.realm import read_realm

        return read_realm(self.settings.file, secrets=False)

    def part(self, name: str) -> "Realm":
        """Return a realm with one field of the settings file. All other fields have defaults and are not checked."""
        from kingdom.realm import read_part

        return read_part(_settings_file(self.given.get("config")), name)

    def readable(self, records: Iterable[Record], kind: type[T]) -> list[T]:
        """Decode records. Skip records that cannot be read, with a note."""
        return list(read_documents(records, kind, self.note_unreadable))

    def read(self, record: Record | None, kind: type[T]) -> T | None:
        """Decode a record. Return None if there is no record or it cannot be read."""
        return next(iter(self.readable([record] if record else [], kind)), None)

    def note_unreadable(self, record_id: str, error: Unreadable) -> None:
        """Print a note about a record that cannot be read, once per call."""
        if record_id not in self._unreadable:
            self._unreadable.add(record_id)
            self.output.note(f"{record_id} is left out: {error}")

    def application(self) -> Application | None:
        """Return the application of --app or KINGDOM_APP, if any."""
        return load_application(self.settings.application) if self.settings.application else None

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
        # In a folder below a realm, a command most probably means the store of the realm, so it creates no other one.
        create = create and (settings.store_is_named or settings.file is not None or _realm_above() is None)
        opening = open_bus(
            settings.database_url,
            application.topology,
            application.kinds,
            schema=settings.schema,
            connections=connections,
            idle_limit=idle_limit,
            through_pgbouncer=settings.through_pgbouncer,
            listen_url=settings.listen_url,
            create=create,
            kafka=settings,
        )
        async with AsyncExitStack() as stack:
            try:
                bus = await stack.enter_async_context(opening)
            except NotFound as error:
                raise NotFound(f"{error}: {_how_to_begin(settings.file)}") from error
            yield bus

    @asynccontextmanager
    async def operations(self, *streams: str) -> AsyncIterator[Operations]:
        """Open the operations of the bus. If there is an application, it must declare the given streams."""
        application = self.application() or application_for_any_stream()
        for stream in streams:
            application.topology.stream(stream)
        async with self.bus(application, create=False) as bus:
            yield operations_of(bus)


# A function that is registered as a command. Other commands can call it directly.
_CommandFunction = Callable[Concatenate[CommandCall, P], Coroutine[Any, Any, int | None]]


def application_for_any_stream(*, ordered: bool = False) -> Application:
    """Return an application that accepts any stream and has no handlers, for commands without --app."""
    return Application(
        topology=OpenTopology(Stream(name="undeclared", ordered=ordered)), dispatcher=Dispatcher(), kinds=()
    )


def command(
    app: typer.Typer, name: str, *, result: JsonResult | None, json_flags: tuple[str, ...] = ("--json",)
) -> Callable[[_CommandFunction[P]], _CommandFunction[P]]:
    """Register an async command with the options that all commands have. Its first argument is a CommandCall.

    `result` is what the command prints with --json, or None for a command without JSON.
    """

    def register(function: _CommandFunction[P]) -> _CommandFunction[P]:
        def call(given: dict[str, Any]) -> CommandCall:
            shared = {key: given.pop(key) for key in ("config", "database_url", "schema", "application")}
            return CommandCall(CommandOutput(json=given.pop("as_json")), shared)

        _register(app, name, function, _shared_options(json_flags), call, result)
        return function

    return register


def storeless_command(
    app: typer.Typer, name: str, *, result: JsonResult | None
) -> Callable[[Callable[Concatenate[CommandOutput, P], Coroutine[Any, Any, int | None]]], None]:
    """Register an async command that reads no settings and no store. Its first argument is a CommandOutput."""

    def register(function: Callable[Concatenate[CommandOutput, P], Coroutine[Any, Any, int | None]]) -> None:
        def output(given: dict[str, Any]) -> CommandOutput:
            return CommandOutput(json=given.pop("as_json"))

        _register(app, name, function, _shared_options(("--json",))[-1:], output, result)

    return register


def _register(
    app: typer.Typer,
    name: str,
    function: Callable[..., Coroutine[Any, Any, int | None]],
    options: list[inspect.Parameter],
    make_first: Callable[[dict[str, Any]], CommandCall | CommandOutput],
    result: JsonResult | None,
) -> None:
    """Register a function with further options. `make_first` makes its first argument from their values."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        argument = make_first(given)
        _refuse_empty(own, given)
        output = argument.output if isinstance(argument, CommandCall) else argument
        # Logs go to standard error, because standard output is for the result.
        configure_logs(json=output.json, level=logging.WARNING)
        code = asyncio.run(function(argument, **given))
        if code:
            raise typer.Exit(code)

    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    # Typer wraps the lines itself. A bracket is escaped, because Typer would read it as markup.
    run.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("[", "\\[")
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # typer reads the options from it
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
    )
    for each in (*own, *options):
        # A flag takes no value, so help shows none.
        if get_args(each.annotation)[:1] == (bool,):
            each.annotation.__metadata__[0].metavar = ""
    run.json_result = result  # type: ignore[attr-defined] # a function accepts any attribute
    app.command(name)(run)


def _refuse_empty(parameters: list[inspect.Parameter], given: dict[str, Any]) -> None:
    """Reject an empty text for a required argument."""
    for each in parameters:
        required = each.kind is not inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if required and given[each.name] == "":
            [argument] = each.annotation.__metadata__
            raise typer.BadParameter(f"{argument.metavar or each.name.upper()} is empty.")


def settings_of(*, config: Path | str | None = None, **given: str | None) -> Settings:
    """Return the settings. The store is that of the settings file, unless an option or variable names another."""
    file = _settings_file(config)
    settings = Settings.read(file=file, **given)
    is_named = settings.store_is_named
    if file is None or (is_named and not config):
        return settings
    # A file that is given with --config must be valid, even if its store is not used.
    from kingdom.realm import read_part

    url = read_part(file, "database_url", secrets=not is_named).database_url
    return replace(settings, database_url=url) if url and not is_named else settings


def _settings_file(config: Path | str | None) -> Path | None:
    return Path(config) if config else find_realm_file()


def _how_to_begin(file: Path | None) -> str:
    """Return what to do next when there is no store yet."""
    if file:
        hint = "`kingdom up` or `kingdom send` creates it"
    elif above := _realm_above():
        hint = f"the realm is in {above}: run this there, or with --config {above / FILE}"
    else:
        hint = "`kingdom init` creates a realm, `kingdom demo` shows one"
    return f"{hint}; --database-url or KINGDOM_DATABASE_URL names another store"


def _realm_above() -> Path | None:
    """Return the directory above the current one that has a settings file, or None."""
    return next((place for place in Path.cwd().parents if (place / FILE).exists()), None)


def _shared_options(json_flags: tuple[str, ...]) -> list[inspect.Parameter]:
    def option(*flags: str, text: str) -> Any:
        return typer.Option(*flags, help=text, rich_help_panel="Common options", show_default=False)

    config = f"The settings file; by default {FILE} in this directory, if it exists."
    url = (
        "The store: file:DIRECTORY, postgresql://… or embedded:DIRECTORY; by default KINGDOM_DATABASE_URL,"
        " then database_url in kingdom.yaml, then DATABASE_URL, then file:realm."
    )
    schema = "The schema in the database; by default KINGDOM_SCHEMA, then kingdom."
    application = "MODULE:OBJECT that declares the streams; by default KINGDOM_APP, or every stream is accepted."

    def shared(
        *,
        config: Annotated[Path | None, option("--config", text=config)] = None,
        database_url: Annotated[str | None, option("--database-url", text=url)] = None,
        schema: Annotated[str | None, option("--schema", text=schema)] = None,
        application: Annotated[str | None, option("--app", text=application)] = None,
        as_json: Annotated[bool, option(*json_flags, text="Print JSON.")] = False,
    ) -> None: ...

    return list(inspect.signature(shared).parameters.values())

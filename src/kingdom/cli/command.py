"""What every command has in common: how it reaches the store, how it answers, how it ends."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from importlib import import_module
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
from kingdom.cli.application import load_application
from kingdom.cli.output import Output
from kingdom.cli.shape import Answer
from kingdom.errors import NotFound, Unreadable
from kingdom.log_output import configure_logs
from kingdom.settings import FILE, Settings, find_realm_file

if TYPE_CHECKING:
    from kingdom.realm import Realm

P = ParamSpec("P")
T = TypeVar("T")
# How many of a list are shown.
Newest = Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")]
# An operator's command does one thing at a time.
_FEW_CONNECTIONS = 2


@dataclass(frozen=True)
class Call:
    """One use of the command line: where its answer goes, and the options by which every command finds its store."""

    output: Output
    given: Mapping[str, Any]
    _left_out: set[str] = field(default_factory=set, init=False)

    @cached_property
    def settings(self) -> Settings:
        """Return the settings, which are read where somebody asks: not every command needs a store."""
        return settings_of(**self.given)

    @cached_property
    def realm(self) -> "Realm":
        """Return what the file of settings says; its secrets are only named, since few may know them."""
        # Its reader is loaded only where it is needed, so that help comes at once.
        realm: Realm = import_module("kingdom.realm").read_realm(self.settings.file, secrets=False)
        return realm

    def part(self, name: str) -> "Realm":
        """Return what the file of settings says in one field, whatever stands in the others."""
        file = _settings_file(self.given.get("config"))
        realm: Realm = import_module("kingdom.realm").read_part(file, name)
        return realm

    def readable(self, records: Iterable[Record], kind: type[T]) -> list[T]:
        """Return what records hold; one that cannot be read is told of, and does not hide the others."""
        return list(read_documents(records, kind, self.leave_out))

    def read(self, record: Record | None, kind: type[T]) -> T | None:
        """Return what one record holds, if there is one that can be read."""
        return next(iter(self.readable([record] if record else [], kind)), None)

    def leave_out(self, record_id: str, error: Unreadable) -> None:
        """Tell of a record that cannot be read, once however often somebody looks."""
        if record_id not in self._left_out:
            self._left_out.add(record_id)
            self.output.note(f"{record_id} is left out: {error}")

    def application(self) -> Application | None:
        """Return the application that was named by --app or KINGDOM_APP, if any."""
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
        )
        async with AsyncExitStack() as stack:
            try:
                bus = await stack.enter_async_context(opening)
            except NotFound as error:
                raise NotFound(f"{error}: {_how_to_begin(settings.file)}") from error
            yield bus

    @asynccontextmanager
    async def operations(self, *streams: str) -> AsyncIterator[Operations]:
        """Open the operator's port; the named streams must be declared, if there is an application to ask."""
        application = self.application() or undeclared()
        for stream in streams:
            application.topology.stream(stream)
        async with self.bus(application, create=False) as bus:
            yield operations_of(bus)


# A command can be called by another one, too.
_Asked = Callable[Concatenate[Call, P], Coroutine[Any, Any, int | None]]


def undeclared(*, ordered: bool = False) -> Application:
    """Return what an operator works with who has no application at hand: any stream, no handlers."""
    return Application(
        topology=OpenTopology(Stream(name="undeclared", ordered=ordered)), dispatcher=Dispatcher(), kinds=()
    )


def command(
    app: typer.Typer, name: str, *, answer: Answer | None, json_flags: tuple[str, ...] = ("--json",)
) -> Callable[[_Asked[P]], _Asked[P]]:
    """Register an async command; it gets a Call, the user gets the options that all commands have.

    `answer` is what it prints with --json; one that is for people only has None and refuses.
    """

    def register(function: _Asked[P]) -> _Asked[P]:
        def call(given: dict[str, Any]) -> Call:
            shared = {key: given.pop(key) for key in ("config", "database_url", "schema", "application")}
            return Call(Output(json=given.pop("as_json")), shared)

        _register(app, name, function, _shared_options(json_flags), call, answer)
        return function

    return register


def storeless_command(
    app: typer.Typer, name: str, *, answer: Answer | None
) -> Callable[[Callable[Concatenate[Output, P], Coroutine[Any, Any, int | None]]], None]:
    """Register an async command that nothing here can stop: it gets an Output, and no settings are read for it."""

    def register(function: Callable[Concatenate[Output, P], Coroutine[Any, Any, int | None]]) -> None:
        def output(given: dict[str, Any]) -> Output:
            return Output(json=given.pop("as_json"))

        _register(app, name, function, _shared_options(("--json",))[-1:], output, answer)

    return register


def _register(
    app: typer.Typer,
    name: str,
    function: Callable[..., Coroutine[Any, Any, int | None]],
    options: list[inspect.Parameter],
    first: Callable[[dict[str, Any]], Call | Output],
    answer: Answer | None,
) -> None:
    """Register a function with more options than its own; `first` takes those and makes its first argument of them."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        argument = first(given)
        _refuse_empty(own, given)
        output = argument.output if isinstance(argument, Call) else argument
        # Standard output is for the answer alone.
        configure_logs(json=output.json, level=logging.WARNING)
        code = asyncio.run(function(argument, **given))
        if code:
            raise typer.Exit(code)

    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    # The terminal breaks lines at its own width.
    # A bracket is the shape of an answer here, no markup.
    run.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("[", "\\[")
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
    )
    for each in (*own, *options):
        # What stands behind an option is shown; behind a flag nothing does.
        if get_args(each.annotation)[:1] == (bool,):
            each.annotation.__metadata__[0].metavar = ""
    run.answer = answer  # type: ignore[attr-defined]
    app.command(name)(run)


def _refuse_empty(parameters: list[inspect.Parameter], given: dict[str, Any]) -> None:
    """Refuse an argument without which there is nothing to do, if it is an empty text: nothing is called so."""
    for each in parameters:
        required = each.kind is not inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if required and given[each.name] == "":
            [argument] = each.annotation.__metadata__
            raise typer.BadParameter(f"{argument.metavar or each.name.upper()} is empty.")


def settings_of(*, config: Path | str | None = None, **given: str | None) -> Settings:
    """Return the settings; the file of settings names the store, unless a person has named one."""
    file = _settings_file(config)
    settings = Settings.read(file=file, **given)
    is_named = settings.store_is_named
    if file is None or (is_named and not config):
        return settings
    # A file that somebody names must be one, even where its store does not count.
    url: str = import_module("kingdom.realm").read_part(file, "database_url", secrets=not is_named).database_url
    return replace(settings, database_url=url) if url and not is_named else settings


def _settings_file(config: Path | str | None) -> Path | None:
    return Path(config) if config else find_realm_file()


def _how_to_begin(file: Path | None) -> str:
    """Return what somebody can do who has no store yet."""
    if file:
        makes = "`kingdom up` or `kingdom send` makes it"
    elif above := next((place for place in Path.cwd().parents if (place / FILE).exists()), None):
        makes = f"the realm is in {above}: run this there, or with --config {above / FILE}"
    else:
        makes = "`kingdom init` makes a realm, `kingdom demo` shows one"
    return f"{makes}; --database-url or KINGDOM_DATABASE_URL names another"


def _shared_options(json_flags: tuple[str, ...]) -> list[inspect.Parameter]:
    def option(*flags: str, text: str) -> Any:
        return typer.Option(*flags, help=text, rich_help_panel="Common options", show_default=False)

    config = f"The file of settings; else {FILE} of this directory, if there is one."
    url = (
        "Where the store is: file:DIRECTORY, postgresql://… or embedded:DIRECTORY; else KINGDOM_DATABASE_URL,"
        " the one that kingdom.yaml names, DATABASE_URL, file:realm."
    )
    schema = "The schema in it; else KINGDOM_SCHEMA, else kingdom."
    application = "MODULE:OBJECT that declares the streams; else KINGDOM_APP, else every stream is accepted."

    def shared(
        *,
        config: Annotated[Path | None, option("--config", text=config)] = None,
        database_url: Annotated[str | None, option("--database-url", text=url)] = None,
        schema: Annotated[str | None, option("--schema", text=schema)] = None,
        application: Annotated[str | None, option("--app", text=application)] = None,
        as_json: Annotated[bool, option(*json_flags, text="Answer in JSON.")] = False,
    ) -> None: ...

    return list(inspect.signature(shared).parameters.values())

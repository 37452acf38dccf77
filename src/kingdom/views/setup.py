"""The results of setting up a realm and a shell."""

import msgspec


class InitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The created files, the kept files, and the next commands."""

    directory: str
    made: list[str]
    kept: list[str]
    store: str
    general: str
    next: list[str]


class ExampleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An example of a settings file."""

    text: str


class CompletionScript(msgspec.Struct, frozen=True, kw_only=True):
    """The completion script of a shell."""

    shell: str
    text: str

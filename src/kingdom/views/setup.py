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


class AppWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GitHub App sends its webhooks."""

    url: str
    active: bool


class AppManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a GitHub App, with the field names of GitHub."""

    name: str
    url: str
    public: bool
    hook_attributes: AppWebhook
    default_permissions: dict[str, str]
    default_events: list[str]


class CompletionScript(msgspec.Struct, frozen=True, kw_only=True):
    """The completion script of a shell."""

    shell: str
    text: str

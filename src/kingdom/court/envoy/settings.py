"""What can be set about the Envoy: the part `envoy` of the file of settings."""

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

_Words = Annotated[str, Meta(min_length=1)]
_Positive = Annotated[float, Meta(gt=0)]
_Address = Annotated[str, Meta(pattern=r"^https?://[^/]")]


class _EnvoySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings; a field that nobody knows is an error."""


class SlackSettings(_EnvoySection, frozen=True, kw_only=True):
    """How Slack is reached: the token of the bot speaks, that of the app listens by Socket Mode."""

    bot_token: _Words
    # Without it people are told, and answer by the command line.
    app_token: str = ""
    base_url: _Address = "https://slack.com/api/"
    # A message that is not there so long after it was sent never arrived.
    settles_after_seconds: _Positive = 10
    # A call that takes longer is given up.
    call_seconds: _Positive = 10

    @property
    def settles_after(self) -> timedelta:
        """Return how long after a post was begun Slack shows it, if it ever will; a post is up to two calls."""
        return timedelta(seconds=2 * self.call_seconds + self.settles_after_seconds)


class EnvoyWebhookSettings(_EnvoySection, frozen=True, kw_only=True):
    """Where messages are posted as signed JSON; whoever listens does each `Idempotency-Key` only once."""

    url: _Address
    secret: _Words


class EnvoySettings(_EnvoySection, frozen=True, kw_only=True):
    """Where people are told; with neither Slack nor a webhook it is the log."""

    slack: SlackSettings | None = None
    webhook: EnvoyWebhookSettings | None = None
    # Where something is told that names no channel: a name, an id, or a person's id.
    channel: str = "kingdom"
    every_seconds: _Positive = 30

    def __post_init__(self) -> None:
        if self.slack and self.webhook:
            raise ValueError("people are told in one messenger: name slack or webhook, not both")

    @property
    def every(self) -> timedelta:
        """Return the time between two looks at open questions."""
        return timedelta(seconds=self.every_seconds)

"""The section `envoy` of the settings."""

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

_Words = Annotated[str, Meta(min_length=1)]
_Positive = Annotated[float, Meta(gt=0)]
_Address = Annotated[str, Meta(pattern=r"^https?://[^/]")]


class _EnvoySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings; an unknown field is an error."""


class SlackSettings(_EnvoySection, frozen=True, kw_only=True):
    """How to reach Slack: the bot token sends, the app token receives over Socket Mode."""

    bot_token: _Words
    # Without an app token, people cannot answer in Slack, only on the command line and over the web.
    app_token: str = ""
    base_url: _Address = "https://slack.com/api/"
    # A message that Slack does not show after this time was not received.
    settles_after_seconds: _Positive = 10
    # The timeout of one call.
    call_seconds: _Positive = 10

    @property
    def settles_after(self) -> timedelta:
        """Return how long after the start of a post its message can still appear. A post takes up to two calls."""
        return timedelta(seconds=2 * self.call_seconds + self.settles_after_seconds)


class EnvoyWebhookSettings(_EnvoySection, frozen=True, kw_only=True):
    """Where to post messages as signed JSON. The receiver must process each `Idempotency-Key` only once."""

    url: _Address
    secret: _Words


class EnvoySettings(_EnvoySection, frozen=True, kw_only=True):
    """Where messages go. Without Slack and without a webhook, they go to the log."""

    slack: SlackSettings | None = None
    webhook: EnvoyWebhookSettings | None = None
    # The default channel: a name, an id, or a person's id.
    channel: str = "kingdom"
    every_seconds: _Positive = 30

    def __post_init__(self) -> None:
        if self.slack and self.webhook:
            raise ValueError("configure slack or webhook, not both")

    @property
    def every(self) -> timedelta:
        """Return the time between two checks of open questions."""
        return timedelta(seconds=self.every_seconds)

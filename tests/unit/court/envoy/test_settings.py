import hashlib
import hmac
import subprocess
import sys

import msgspec
import pytest

from kingdom.court.envoy.envoy import make_messenger
from kingdom.court.envoy.messenger import LogMessenger
from kingdom.court.envoy.settings import EnvoySettings, EnvoyWebhookSettings, SlackSettings
from kingdom.court.envoy.webhook_messenger import WebhookMessenger, signature

SLACK = {"bot_token": "xoxb-1"}
WEBHOOK = {"url": "https://example.org/hook", "secret": "s"}


def test_people_are_notified_in_the_configured_channel() -> None:
    assert isinstance(make_messenger(EnvoySettings()), LogMessenger)
    assert isinstance(make_messenger(EnvoySettings(webhook=EnvoyWebhookSettings(**WEBHOOK))), WebhookMessenger)
    assert make_messenger(EnvoySettings(slack=SlackSettings(bot_token="xoxb-1"))).target.name == "slack"  # noqa: S106 - not a real token


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slack": SLACK, "webhook": WEBHOOK}, "not both"),
        ({"slack": {}}, "bot_token"),
        ({"webhook": {**WEBHOOK, "url": "example.org"}}, r"\$\.webhook\.url"),
        ({"every_seconds": 0}, "every_seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(settings, EnvoySettings)


def test_without_its_client_slack_says_what_to_install() -> None:
    # A new process has not imported the client of Slack yet.
    program = """
import sys
sys.modules["slack_sdk"] = None
from kingdom.court.envoy.envoy import make_messenger
from kingdom.court.envoy.settings import EnvoySettings, SlackSettings
make_messenger(EnvoySettings(slack=SlackSettings(bot_token="xoxb-1")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert "Misconfigured: Slack needs its client: pip install 'kingdom[slack]'" in done.stderr


def test_a_signature_is_that_of_the_body_under_the_secret() -> None:
    expected = hmac.new(b"secret", b"{}", hashlib.sha256).hexdigest()
    assert signature("secret", b"{}") == f"sha256={expected}"

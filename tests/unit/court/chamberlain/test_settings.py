"""The page on the Chamberlain shows its settings with their defaults."""

from pathlib import Path

import msgspec
import pytest
import yaml

from kingdom.court.chamberlain.settings import ChamberlainSettings, RetentionSettings

PAGE = Path(__file__).parents[4] / "docs" / "chamberlain.md"


def test_the_page_shows_every_setting_with_its_default() -> None:
    text = PAGE.read_text(encoding="utf-8").rpartition("```yaml\n")[2].partition("```")[0]
    shown = yaml.safe_load(text)["chamberlain"]
    assert shown == msgspec.to_builtins(ChamberlainSettings())


def test_the_keys_of_the_retention_are_the_documented_ones() -> None:
    assert msgspec.to_builtins(RetentionSettings()) == {
        "log_max_mb": 100,
        "logs_days": 7,
        "results_days": 7,
        "queue_days": 7,
        "prompts_days": 3,
        "session_logs_days": 7,
        "seen_days": 30,
    }


@pytest.mark.parametrize(
    "document", [{"retention": {"log_days": 7}}, {"retention": {"logs_days": 0}}, {"report_hour": 24}]
)
def test_an_unknown_or_invalid_setting_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, ChamberlainSettings)

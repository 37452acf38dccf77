"""The check of the web interface: each dangerous setting has its own sentence."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.doctor.scene import look_at, write_settings

SECRET = "a secret of enough characters"  # noqa: S105 - a test
PEOPLE = {"dana": ["look"]}


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        (False, "skipped", "web is off"),
        (True, "ok", "127.0.0.1:8700"),
        ({"address": "[::1]:9000"}, "ok", "[::1]:9000"),
        ({"address": "0.0.0.0:9000", "url": "https://kingdom.example"}, "ok", "https://kingdom.example"),
        ({"address": "0.0.0.0:9000"}, "fail", "open to other machines without https"),
        ({"address": "0.0.0.0:9000", "insecure": True}, "warn", "others can read sessions"),
        ({"proxy": {"people": PEOPLE}}, "fail", "anyone could claim a name"),
        ({"proxy": {"people": PEOPLE, "secret": "short"}}, "warn", "can be guessed"),
        ({"proxy": {"secret": SECRET}}, "warn", "gives no person a right"),
        ({"proxy": {"people": PEOPLE, "secret": SECRET}}, "ok", "127.0.0.1:8700"),
        ({"address": "unix:/run/web.sock"}, "fail", "no browser can open"),
    ],
    ids=str,
)
async def test_each_state_of_the_settings_is_reported(tmp_path: Path, settings: Any, status: str, words: str) -> None:
    report = await look_at("web", config=write_settings(tmp_path, web=settings))
    assert (report.status, words in report.found) == (status, True), report

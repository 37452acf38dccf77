"""Errors that a command finds when it runs are one sentence with the next step."""

from pathlib import Path

import pytest

from tests.acceptance.sample_store import InProcessCli


def test_an_inaccessible_file_is_named_with_the_reason(cli: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("{}\n")
    (tmp_path / "realm/up.lock").mkdir(parents=True)
    done = cli("up")
    assert (done.code, done.out) == (1, "")
    step = "correct this, then run the command again"
    assert done.err == f"kingdom: realm/up.lock is not accessible (Is a directory): {step}\n"


def test_a_revoked_credential_that_does_not_exist_names_a_command_that_does(cli_on_sample: InProcessCli) -> None:
    for group in ("token", "sessions"):
        missing = cli_on_sample("web", group, "revoke", "nosuch")
        assert (missing.code, f"`kingdom web {group} list` shows all" in missing.err) == (1, True)


@pytest.mark.parametrize("url", ["", "nosuch.example", "ftp://nosuch.example", "http://[::1"])
def test_an_invalid_url_of_a_server_is_refused(cli: InProcessCli, url: str) -> None:
    done = cli("bus", "tail", "--url", url)
    assert (done.code, "write https://HOST" in done.err) == (2, True)


def test_a_token_that_is_no_text_is_refused(cli: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    done = cli("bus", "tail", "--url", "http://127.0.0.1:1", "--token-file", "token")
    assert (done.code, "kingdom web token create" in done.err) == (2, True)

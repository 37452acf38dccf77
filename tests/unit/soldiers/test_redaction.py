import asyncio
import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from kingdom.soldiers.redaction import (
    DEFAULT_REDACTION,
    REDACTED,
    RedactedStream,
    Redaction,
    secrets_in,
    write_redacted,
)

# Assembled here, so that no scanner finds a token in this file.
BODY = "Zx3Yw9Vu2Ts8Rq7Po1Nm6Lk5Ji4Hg0FeDcBa" * 2
PEM = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n" + f"{BODY[:64]}\n" * 20 + f"-----END RSA {'PRIVATE'} KEY-----"
TOKENS = [
    f"sk-ant-{'api03'}-{BODY}",
    f"sk-{'proj'}-{BODY}",
    f"sk-{BODY}",
    f"ghp_{BODY[:36]}",
    f"gho_{BODY[:36]}",
    f"ghs_{BODY[:36]}",
    f"github_pat_{BODY[:22]}_{BODY[:59]}",
    f"glpat-{BODY[:20]}",
    f"xoxb-{'1234567890'}-{'1234567890'}-{BODY[:24]}",
    f"xapp-{'1'}-A012-{BODY}",
    f"AKIA{'IOSFODNN7EXAMPLE'}",
    f"AIza{BODY[:35]}",
    f"sk_live_{BODY[:24]}",
    f"npm_{BODY[:36]}",
    f"ATATT3{BODY}",
    f"eyJ{BODY[:20]}.eyJ{BODY[:30]}.{BODY[:43]}",
    PEM,
]
SECRET = 'correct "horse" battery/ö!*\\'  # noqa: S105 - it opens nothing


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_of_a_well_known_form_is_removed_and_its_neighbors_stay(token: str) -> None:
    assert DEFAULT_REDACTION.text(f"before {token} after") == f"before {REDACTED} after"


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_found_in_a_text_that_is_json_itself(token: str) -> None:
    nested = msgspec.json.encode({"output": f"line\n{token}\nnext"}).decode()
    found = DEFAULT_REDACTION.text(nested)
    assert BODY[:20] not in found
    assert "IOSFODNN7" not in found


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"postgresql://kingdom:{BODY}@db/kingdom", f"postgresql://kingdom:{REDACTED}@db/kingdom"),
        (f"https://x:{BODY}@github.com/a/b.git", f"https://x:{REDACTED}@github.com/a/b.git"),
        (f"Authorization: Bearer {BODY}", f"Authorization: Bearer {REDACTED}"),
        (f"> authorization: token {BODY}\r\n", f"> authorization: token {REDACTED}\r\n"),
        (f'"x-api-key": "{BODY}"', f'"x-api-key": "{REDACTED}"'),
        (f"aws_secret_access_key = {BODY[:40]}", f"aws_secret_access_key = {REDACTED}"),
    ],
)
def test_only_the_secret_part_is_removed(text: str, left: str) -> None:
    assert DEFAULT_REDACTION.text(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "a task-force, a risk-free desk-top-publishing-system",
        "http://localhost:8080/path?mail=a@b.example",
        "git@github.com:owner/name.git and ssh://git@github.com/owner/name",
        "sk-test-local, ghp_, npm_config_cache, SG.x, eyJhbGciOiJIUzI1NiJ9 alone",
        "the public half: -----BEGIN PUBLIC KEY-----",
        "commit 0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert DEFAULT_REDACTION.text(text) == text


@pytest.mark.parametrize(
    "spelled",
    [
        lambda secret: secret,
        lambda secret: msgspec.json.encode(secret).decode(),
        json.dumps,
        lambda secret: json.dumps(json.dumps({"key": secret})),
        lambda secret: json.dumps(json.dumps(secret, ensure_ascii=False).replace("/", "\\/")),
        lambda secret: f"?key={quote(secret, safe='')}&x=1",
        lambda secret: quote(secret, safe="").lower(),
        lambda secret: quote(secret, safe="!'()*~"),
        lambda secret: quote(quote(secret)),
        quote_plus,
        lambda secret: base64.b64encode(secret.encode()).decode(),
        lambda secret: base64.b64encode(f"x{secret}yz".encode()).decode(),
        lambda secret: base64.urlsafe_b64encode(f"xy{secret}z".encode()).decode(),
    ],
)
def test_a_known_secret_is_removed_however_it_is_spelled(spelled: Callable[[str], str]) -> None:
    written = spelled(SECRET)
    left = Redaction([SECRET]).text(f"it is {written} .")
    assert REDACTED in left
    assert len(left) < len(written)
    for part in ("horse", "battery", base64.b64encode(SECRET.encode()).decode()[4:12]):
        assert part not in left


@pytest.mark.parametrize("text", [SECRET.replace('"', ""), SECRET.replace("ö", "%C3%B7"), SECRET.upper()])
def test_a_text_that_only_resembles_a_secret_stays(text: str) -> None:
    assert Redaction([SECRET]).text(text) == text


def test_each_line_of_a_long_secret_is_a_secret() -> None:
    redaction = Redaction(["first-half-of-it\nsecond-half-of-it"])
    assert redaction.text("cut out: second-half-of-it!") == f"cut out: {REDACTED}!"


def test_a_text_too_short_to_be_a_secret_is_left_alone() -> None:
    assert Redaction(["", "on", "kingdom"]).text("kingdom goes on") == "kingdom goes on"


def test_secrets_that_overlap_are_removed_together() -> None:
    assert Redaction(["abcdefgh-1", "efgh-12345"]).text("<abcdefgh-12345>") == f"<{REDACTED}>"


def test_adding_secrets_leaves_the_first_redaction_unchanged() -> None:
    first = Redaction(["first-secret"])
    both = first.with_secrets(["second-secret"])
    assert both.text("first-secret second-secret") == f"{REDACTED} {REDACTED}"
    assert first.text("second-secret") == "second-secret"


def test_every_text_of_a_value_is_redacted_and_nothing_else_changes() -> None:
    value = {"n": 1, "deep": [{"text": f"a {SECRET}"}, None, True, 2.5], f"{SECRET}": "name"}
    expected = {"n": 1, "deep": [{"text": f"a {REDACTED}"}, None, True, 2.5], REDACTED: "name"}
    assert Redaction([SECRET]).value(value) == expected


def test_a_document_nested_too_deeply_is_left_out() -> None:
    value: list[Any] = ["deep"]
    for _ in range(900):
        value = [value]
    assert b"deep" not in msgspec.json.encode(DEFAULT_REDACTION.value(value))
    assert DEFAULT_REDACTION.value([[[["deep"]]]]) == [[[["deep"]]]]


@pytest.mark.parametrize("token", [*TOKENS, SECRET])
def test_the_beginning_of_a_text_has_no_part_of_a_secret_that_is_cut(token: str) -> None:
    redaction = Redaction([SECRET])
    text = f"before {token} after"
    start, end = len("before "), len(f"before {token}")
    for length in range(len(text) + 2):
        secret = REDACTED if length > start else ""
        assert redaction.beginning(text, length) == text[: min(length, start)] + secret + text[end:length]


@pytest.mark.parametrize("token", [*TOKENS, SECRET])
def test_the_end_of_a_text_has_no_part_of_a_secret_that_is_cut(token: str) -> None:
    redaction = Redaction([SECRET])
    text = f"before {token} after"
    start, end = len("before "), len(f"before {token}")
    for cut in range(len(text)):
        secret = REDACTED if cut < end else ""
        assert redaction.ending(text, len(text) - cut) == text[cut:start] + secret + text[max(cut, end) :]
    assert redaction.ending(text, len(text) + 1) == redaction.text(text)


def test_the_beginning_of_a_text_of_many_secrets_ends_where_the_text_is_cut() -> None:
    assert Redaction(["known-secret-value"]).beginning("known-secret-value " * 9_999, 30) == f"{REDACTED} {REDACTED}"


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("token", [*TOKENS, "known-secret-value"])
def test_a_secret_that_comes_in_pieces_is_removed(token: str, size: int) -> None:
    redaction = Redaction(["known-secret-value"])
    text = f"first line\nthen {token} here\r\nand {token}"
    stream = RedactedStream(redaction)
    passed = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join([*passed, stream.finish()]) == redaction.text(text)
    assert BODY[:20] not in "".join(passed)


@pytest.mark.parametrize("size", [1000, 4096, 50_000])
@pytest.mark.parametrize("secret", [f"sk-ant-{BODY * 3}", f"https://me:{BODY * 3}@host", f"x-api-key: {BODY * 3}"])
def test_a_secret_in_pieces_is_removed_from_a_text_without_line_ends(secret: str, size: int) -> None:
    text = (" " * 9_973 + secret) * 30
    stream = RedactedStream(DEFAULT_REDACTION)
    passed = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert any(passed)
    assert "".join([*passed, stream.finish()]) == DEFAULT_REDACTION.text(text)


def test_whole_lines_are_passed_on_at_once() -> None:
    stream = RedactedStream(DEFAULT_REDACTION)
    assert stream.feed("one\ntwo\nthr") == "one\ntwo\n"
    assert stream.feed("ee\n") == "three\n"


def test_a_key_is_held_back_until_its_end_is_known() -> None:
    stream = RedactedStream(DEFAULT_REDACTION)
    lines = [f"{line}\n" for line in f"here:\n{PEM}\nthere".splitlines()]
    assert "".join(stream.feed(line) for line in lines) == f"here:\n{REDACTED}\nthere\n"


async def test_output_of_a_program_is_appended_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "soldier.err"
    path.write_text("earlier\n")
    source = asyncio.StreamReader()
    writing = asyncio.create_task(write_redacted(source, path, Redaction([SECRET])))
    for byte in f"warning: ö\nkey {SECRET}\nlast words".encode():
        source.feed_data(bytes([byte]))
        await asyncio.sleep(0)
    source.feed_eof()
    await writing
    assert path.read_text() == f"earlier\nwarning: ö\nkey {REDACTED}\nlast words"


async def test_bytes_that_are_not_text_are_written_too(tmp_path: Path) -> None:
    source = asyncio.StreamReader()
    source.feed_data(b"\xff\xfe binary \x00\n")
    source.feed_eof()
    await write_redacted(source, tmp_path / "soldier.err", DEFAULT_REDACTION)
    assert b" binary \x00\n" in (tmp_path / "soldier.err").read_bytes()


async def test_output_beyond_the_maximum_file_size_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "soldier.err"
    with path.open("wb") as file:
        file.truncate((64 << 20) - 100)
    source = asyncio.StreamReader(limit=1 << 20)
    source.feed_data(b"x" * 79 + b"\n" + b"y" * 300_000 + b"\n")
    source.feed_eof()
    await write_redacted(source, path, DEFAULT_REDACTION)
    assert path.stat().st_size < (64 << 20) + 100
    assert path.read_bytes().endswith(b"is left out]\n")


def test_variables_whose_names_look_like_secrets_are_found() -> None:
    environment = {
        "GITHUB_TOKEN": "a",
        "api_key": "b",
        "DB_PASSWORD": "c",
        "KEYBOARD": "d",
        "TOKENS_MAX": "e",
        "KEY": "f",
    }
    assert secrets_in(environment) == {"a", "b", "c", "f"}


HOSTILE = (
    *("eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaa.bbbbbbbb.", "://", "://a:", "sk-ant-", "- ", "SG.aaaaaaaaaaaaaaaaaa."),
    *("-----BEGIN PRIVATE KEY-----", "authorization:", "ghp_", "xoxb-", "github_pat_", "AKIA", "=", "a"),
)
# Each secret overlaps the next one, so every position is inside of a secret.
CHAIN = f"AKIA{'B' * 6}ASIA{'B' * 6}"

PROCESSOR_SECONDS = 15


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_hostile_text_takes_long(hostile: str) -> None:
    began = time.process_time()
    DEFAULT_REDACTION.text(hostile * (1_200_000 // len(hostile)))
    # Processor time, which other load does not change: tenths of a second, or minutes if an expression is quadratic.
    assert time.process_time() - began < PROCESSOR_SECONDS


class CountingRedaction(Redaction):
    """Counts the characters that are scanned."""

    def __init__(self) -> None:
        super().__init__()
        self.scans: list[int] = []

    def find(self, text: str) -> Iterator[re.Match[str]]:
        self.scans.append(len(text))
        return super().find(text)


@pytest.mark.parametrize("size", [1000, 1 << 16])
@pytest.mark.parametrize("hostile", [*HOSTILE, f"AKIA{'A' * 16}", "-----BEGIN PRIVATE KEY-----\n", CHAIN])
def test_hostile_text_in_pieces_is_held_back_and_scanned_only_in_part(hostile: str, size: int) -> None:
    text = hostile * (1_200_000 // len(hostile))
    redaction = CountingRedaction()
    stream = RedactedStream(redaction)
    passed = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert max(redaction.scans) <= 4 * (1 << 16)
    assert sum(redaction.scans) <= 20 * len(text)
    written = "".join([*passed, stream.finish()])
    assert re.sub(r"(\[redacted\])+", REDACTED, written) == DEFAULT_REDACTION.text(text)


@pytest.mark.parametrize("size", [1000, 1 << 16])
@pytest.mark.parametrize("repeated", [f"AKIA{'A' * 16}", "-----BEGIN PRIVATE KEY-----\n", CHAIN])
def test_every_secret_after_many_others_is_removed(repeated: str, size: int) -> None:
    text = "".join(repeated * (200_000 // len(repeated)) + token + "\n" for token in TOKENS)
    stream = RedactedStream(DEFAULT_REDACTION)
    passed = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    written = "".join([*passed, stream.finish()])
    assert set(written.replace(REDACTED, "")) <= set("-\n")

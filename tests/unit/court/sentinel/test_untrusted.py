"""Whatever strangers write becomes bounded data or is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.remote_http import decode_json
from kingdom.court.sentinel.untrusted import clean_text, convert_untrusted, parse_time, repository_name, time_stamp
from kingdom.errors import MalformedEvent


class _Small(msgspec.Struct):
    name: str


@given(st.text(alphabet=st.characters(), max_size=50), st.integers(0, 60))
def test_a_cleaned_text_is_short_enough_and_can_be_stored(text: str, most: int) -> None:
    kept = clean_text(text, most)
    assert len(kept) <= most
    assert "\x00" not in kept
    assert kept.encode().decode() == kept


def test_half_a_surrogate_can_be_stored_afterwards() -> None:
    assert clean_text(decode_json(b'"a\\ud800b\\u0000"'), 10).encode() == b"a?b\xef\xbf\xbd"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'{"a": Infinity}', b"9" * 100_000, b'{"a": 1} x']
)
def test_a_file_that_is_not_a_document_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_json(raw)


@pytest.mark.parametrize("document", [None, [], {"name": 5}, {}, {"name\ud800": "x"}])
def test_an_invalid_document_is_refused(document: Any) -> None:
    with pytest.raises(MalformedEvent):
        convert_untrusted(document, _Small)


@pytest.mark.parametrize("text", ["", "now", "2026-02-07", "2026-02-07T10:00:00", "9999-12-31T23:59:59-14:00"])
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(MalformedEvent):
        parse_time(text)


@pytest.mark.parametrize("text", ["2026-02-07T10:00:00Z", "2026-02-07T19:00:00.000+0900"])
def test_moments_of_github_and_jira_are_stamped_in_utc(text: str) -> None:
    assert time_stamp(parse_time(text)) == "20260207100000"


@pytest.mark.parametrize(
    "name", ["", "acme", "acme/", "/app", "acme/app/x", "acme/..", "../app", "a b/c", "acme/a\x00"]
)
def test_a_text_that_is_not_a_repository_is_refused(name: str) -> None:
    with pytest.raises(MalformedEvent):
        repository_name(name)

"""The usage in the answers of vendors, read in pieces of any size."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingdom.soldiers.sandbox import prices, usage
from kingdom.soldiers.sandbox.prices import Price, Tokens
from kingdom.soldiers.sandbox.usage import UsageReader
from kingdom.soldiers.sandbox.vendors import Vendor

CLAUDE, GPT, PRO = "claude-opus-5-5", "gpt-5", "gemini-2.5-pro"
MILLION = Tokens(input=1_000_000)


def stream(*events: Any, end: str = "\n") -> bytes:
    return "".join(f"event: x{end}data: {json.dumps(event)}{end}{end}" for event in events).encode()


ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 200,
    "cache_creation_input_tokens": 60,
    "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 20},
}
ANTHROPIC_EVENTS = (
    {"type": "message_start", "message": {"model": CLAUDE, "usage": {**ANTHROPIC_USAGE, "output_tokens": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüße, \U0001f451"}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 30, "input_tokens": 0}},
    {"type": "message_stop"},
)
RESPONSE = {
    "model": GPT,
    "output": [{"type": "web_search_call"}, {"type": "message"}],
    "usage": {"input_tokens": 210, "input_tokens_details": {"cached_tokens": 200}, "output_tokens": 30},
}
CHAT_USAGE = {"prompt_tokens": 210, "prompt_tokens_details": {"cached_tokens": 200}, "completion_tokens": 30}
GEMINI_USAGE = {
    "promptTokenCount": 205,
    "cachedContentTokenCount": 200,
    "toolUsePromptTokenCount": 5,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 10,
}
GEMINI_CHUNKS: Sequence[Mapping[str, Any]] = (
    {
        "candidates": [{"content": {"parts": [{"text": "so"}]}}],
        "usageMetadata": {"promptTokenCount": 205, "candidatesTokenCount": 1},
        "modelVersion": PRO,
    },
    {"candidates": [{"content": {}, "finishReason": "STOP"}], "usageMetadata": GEMINI_USAGE, "modelVersion": PRO},
)
ANTHROPIC_TOKENS = Tokens(input=10, output=30, cache_read=200, cache_write=40, cache_write_hour=20)
CACHED = Tokens(input=10, output=30, cache_read=200)
ANSWERS: dict[str, tuple[Vendor, bytes, str, Tokens]] = {
    "anthropic, whole": (
        Vendor.ANTHROPIC,
        json.dumps({"type": "message", "model": CLAUDE, "usage": {**ANTHROPIC_USAGE, "output_tokens": 30}}).encode(),
        CLAUDE,
        ANTHROPIC_TOKENS,
    ),
    "anthropic, stream": (Vendor.ANTHROPIC, stream(*ANTHROPIC_EVENTS), CLAUDE, ANTHROPIC_TOKENS),
    "anthropic, other ends of lines": (
        Vendor.ANTHROPIC,
        stream(*ANTHROPIC_EVENTS, end="\r\n"),
        CLAUDE,
        ANTHROPIC_TOKENS,
    ),
    "responses, whole": (
        Vendor.OPENAI,
        json.dumps(RESPONSE).encode(),
        GPT,
        Tokens(input=10, output=30, cache_read=200, searches=1),
    ),
    "responses, stream": (
        Vendor.OPENAI,
        stream(
            {"type": "response.created", "response": {"model": GPT, "usage": None}},
            {"type": "response.output_text.delta", "delta": "so"},
            {"type": "response.completed", "response": {**RESPONSE, "service_tier": "priority"}},
        ),
        GPT,
        Tokens(input=10, output=30, cache_read=200, searches=1, fast=True),
    ),
    "chat, whole": (Vendor.OPENAI, json.dumps({"model": GPT, "usage": CHAT_USAGE}).encode(), GPT, CACHED),
    "chat, stream": (
        Vendor.OPENAI,
        stream(
            {"model": GPT, "choices": [{"delta": {"content": "so"}}], "usage": None},
            {"model": GPT, "choices": [], "usage": CHAT_USAGE},
        )
        + b"data: [DONE]\n\n",
        GPT,
        CACHED,
    ),
    "gemini, whole": (Vendor.GEMINI, json.dumps(GEMINI_CHUNKS[-1], indent=2).encode(), PRO, CACHED),
    "gemini, stream": (Vendor.GEMINI, stream(*GEMINI_CHUNKS), PRO, CACHED),
    "gemini, list": (Vendor.GEMINI, json.dumps(GEMINI_CHUNKS, indent=2).encode(), PRO, CACHED),
}


def read(vendor: Vendor, *pieces: bytes) -> UsageReader:
    reader = UsageReader(vendor)
    for piece in pieces:
        reader.feed(piece)
    reader.close()
    return reader


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=25)
@given(data=st.data())
def test_an_answer_cut_into_any_pieces_shows_the_same_usage(name: str, data: st.DataObject) -> None:
    vendor, answer, model, tokens = ANSWERS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    reader = read(vendor, *pieces)
    assert (reader.tokens, reader.model, reader.is_final) == (tokens, model, True)


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_cut_off_answer_shows_the_reported_prompt_size_or_none(name: str, data: st.DataObject) -> None:
    vendor, answer, _, tokens = ANSWERS[name]
    reader = read(vendor, answer[: data.draw(st.integers(0, len(answer)))])
    found = reader.tokens
    assert found == tokens or not reader.is_final
    assert found.prompt in {0, tokens.prompt - (5 if vendor is Vendor.GEMINI else 0), tokens.prompt}


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=200)), st.sampled_from(Vendor))
def test_nonsense_is_no_usage(pieces: list[bytes], vendor: Vendor) -> None:
    assert read(vendor, *pieces).tokens.prompt == 0


@pytest.mark.parametrize(
    "answer",
    [
        b'{"usage": 5}',
        b'{"usage": {"input_tokens": "many", "cache_creation": 3, "server_tool_use": []}}',
        b'{"message": "overloaded"}',
        b'[{"usageMetadata": {"promptTokenCount": -5}}, 7]',
        b"data: {\n\ndata: 7\n\n",
    ],
)
@pytest.mark.parametrize("vendor", Vendor)
def test_usage_of_another_form_counts_nothing(answer: bytes, vendor: Vendor) -> None:
    assert read(vendor, answer).tokens.prompt == 0


def test_a_broken_stream_counts_the_reported_prompt_and_estimates_the_output() -> None:
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 1000}}
    reader = read(Vendor.ANTHROPIC, stream(ANTHROPIC_EVENTS[0], delta))
    assert not reader.is_final
    assert reader.tokens.prompt == ANTHROPIC_TOKENS.prompt
    assert 1000 / 4 < reader.tokens.output <= 1000


def test_an_answer_that_cannot_be_read_is_not_free() -> None:
    assert read(Vendor.ANTHROPIC, b"\x1f\x8b" + b"\xff" * 1000).tokens.output > 0
    assert read(Vendor.OPENAI, b"{" + b" " * 1000).tokens.output > 0


@pytest.mark.parametrize("begin", [b"data: ", b"{"])
def test_an_endless_answer_is_not_kept_in_memory(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_BYTES_MAX", 1000)
    reader = UsageReader(Vendor.ANTHROPIC)
    reader.feed(begin)
    for _ in range(100):
        reader.feed(b"x" * 100)
        assert len(reader._kept) <= 1000
    reader.feed(b"\n\n" + stream(*ANTHROPIC_EVENTS))
    reader.close()
    assert reader.is_final is (begin != b"{")
    assert reader.tokens.output == (30 if reader.is_final else reader.tokens.output)
    assert reader.tokens.output > 0


@pytest.mark.parametrize(
    ("model", "usd"),
    [
        ("claude-opus-5-5", 4.0),
        ("claude-opus-5-5-20261001", 4.0),
        ("claude-haiku-5-5", 0.5),
        ("claude-sonnet-4-20250514", 3.0),
        # A later version of a known model is not a known model.
        ("claude-opus-5-9", 15.0),
        ("claude-unheard-of", 15.0),
        ("", 15.0),
    ],
)
def test_a_model_has_the_price_of_its_name_and_an_unknown_one_the_highest(model: str, usd: float) -> None:
    assert prices.ANTHROPIC.bill(MILLION, model, own={}).usd == usd


@pytest.mark.parametrize(
    "model",
    [
        *("gpt-5", "gpt-5-2025-08-07", "gpt-5-20250807", "gpt-5@20250807", "gpt-5-latest"),
        *("gpt-5-preview", "gpt-5-preview-05-06", "gpt-5-preview-09-2025", "gpt-5-001"),
    ],
)
@pytest.mark.parametrize("own", [{}, {"gpt-5": Price(input=1.0, output=1.0)}], ids=["ours", "operator's"])
def test_a_model_name_followed_by_a_date_or_a_release_word_has_the_price_of_the_model(
    model: str, own: Mapping[str, Price]
) -> None:
    assert prices.OPENAI.bill(MILLION, model, own=own) == prices.Bill(1.0 if own else 1.25)


@pytest.mark.parametrize("model", ["gpt-5-codex-giant", "gpt-5-giant", "gpt-5-1", "gpt-5x", "gpt-5-2025-08-07-giant"])
@pytest.mark.parametrize("own", [{}, {"gpt-5": Price(input=1.0, output=1.0)}], ids=["ours", "operator's"])
def test_a_model_name_with_any_other_ending_is_another_model_and_its_price_is_a_guess(
    model: str, own: Mapping[str, Price]
) -> None:
    assert prices.OPENAI.bill(MILLION, model, own=own) == prices.Bill(21.0, is_guess=True)
    assert prices.price_of(model, prices.OPENAI.models, own).input == 21.0


@pytest.mark.parametrize(
    ("model", "usd"),
    [
        ("gpt-5", 7.0),
        # A model whose name starts with the one in the operator's prices keeps its own price.
        ("gpt-5-pro", 15.0),
        ("gpt-5-pro-2025-10-06", 15.0),
        ("gpt-5-mini", 0.25),
        ("gpt-5.1-codex", 8.0),
        ("gpt-5.1-codex-mini", 0.25),
        ("our-own", 0.0),
    ],
)
def test_the_longest_matching_name_counts_and_prices_of_the_operator_take_precedence(model: str, usd: float) -> None:
    names = {"gpt-5": 7.0, "gpt-5.1-codex": 8.0, "our-own": 0.0}
    own = {name: Price(input=price, output=price) for name, price in names.items()}
    assert prices.OPENAI.bill(MILLION, model, own=own) == prices.Bill(usd)
    assert prices.price_of(model, prices.OPENAI.models, own).input == usd


def test_a_price_of_the_operator_is_the_same_for_long_prompts() -> None:
    own = {PRO: Price(input=1.0, output=1.0)}
    assert prices.GEMINI.bill(MILLION, PRO, own={}).usd == 2.5
    assert prices.GEMINI.bill(MILLION, PRO, own=own).usd == 1.0


def test_the_model_name_in_the_answer_counts_before_the_requested_one() -> None:
    assert prices.OPENAI.bill(MILLION, "gpt-5-mini-2025-08-07", "gpt-5-pro", own={}).usd == 0.25
    assert prices.OPENAI.bill(MILLION, "somebody's", "gpt-5-pro", own={}) == prices.Bill(15.0)


def test_every_kind_of_token_has_its_price() -> None:
    price = Price(input=10, output=100, cache_read=1, cache_write=20)
    tokens = Tokens(input=1000, output=1000, cache_read=1000, cache_write=1000, cache_write_hour=1000, searches=3)
    assert price.cost(tokens) == pytest.approx((10 + 100 + 1 + 20 + 32) / 1000)
    billed = prices.ANTHROPIC.bill(tokens, "claude-opus-5-5", own={}).usd
    assert billed == pytest.approx((4 + 20 + 0.2 + 5 + 8) / 1000 + 0.03)
    assert prices.OPENAI.bill(replace(MILLION, fast=True), "gpt-5", own={}).usd == 2.5

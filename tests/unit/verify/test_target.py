"""The target of a verification. The checks rely on its records, so its own promises are tested too."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kingdom.verify import target as targets
from kingdom.verify.history import History, read_history
from kingdom.verify.target import CallTarget, TargetRequest


class Caller:
    """Sends requests to a target and reads its history."""

    def __init__(self, target: CallTarget, directory: Path) -> None:
        self._target = target
        self._directory = directory

    async def post(self, path: str = "/calls", **body: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
        fields = {
            "key": "k",
            "event": "e",
            "stream": "s",
            "identifier": "i",
            "fence": 1,
            "idempotency": "identifier",
            "answers": [],
        }
        request = await TargetRequest.connect(self._target.port)
        request.send(path, {**fields, **body})
        return await request.response()

    def acts(self) -> list[str]:
        return [entry.what for entry in read_history(self._directory) if entry.what != "received"]


@pytest.fixture
async def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    for pause in ("_SILENCE_SECONDS", "_LATENESS_SECONDS"):
        monkeypatch.setattr(targets, pause, 0.05)
    history = History(tmp_path, "target")
    target = CallTarget(history)
    await target.start()
    yield Caller(target, tmp_path)
    await target.stop()
    history.close()


async def test_a_call_with_the_same_identifier_is_done_once(caller: Caller) -> None:
    assert [(await caller.post())[0] for _ in range(2)] == [201, 200]
    assert caller.acts() == ["accepted", "deduplicated"]


async def test_a_call_with_another_identifier_is_done_again(caller: Caller) -> None:
    assert [(await caller.post(identifier=name))[0] for name in ("i", "j")] == [201, 201]
    assert caller.acts() == ["accepted", "accepted"]


async def test_a_lower_fence_is_refused_after_a_reconcile_with_a_higher_one(caller: Caller) -> None:
    status, _, body = await caller.post("/findings", fence=5, idempotency="fence")
    assert (status, body) == (200, {"happened": False})
    assert (await caller.post(fence=4, idempotency="fence"))[0] == 412
    assert (await caller.post("/findings", fence=4, idempotency="fence"))[0] == 412
    assert (await caller.post(fence=5, idempotency="fence"))[0] == 201
    assert caller.acts() == ["fenced_off", "accepted"]


@pytest.mark.parametrize(
    ("step", "status", "happened"),
    [("throttle", 429, False), ("fail", 503, False), ("accept_then_fail", 500, True), ("accept_late", 201, True)],
)
async def test_a_listed_answer_is_given_once(caller: Caller, step: str, status: int, *, happened: bool) -> None:
    assert (await caller.post(answers=[step]))[0] == status
    _, _, body = await caller.post("/findings")
    assert body == {"happened": happened}
    assert (await caller.post(answers=[step]))[0] == (200 if happened else 201)


async def test_a_throttled_caller_learns_when_to_retry(caller: Caller) -> None:
    _, headers, _ = await caller.post(answers=["throttle_for_a_second"])
    assert headers["Retry-After"] == "1"


async def test_a_call_can_be_accepted_without_an_answer(caller: Caller) -> None:
    with pytest.raises(EOFError):
        await caller.post(answers=["accept_silently"])
    assert caller.acts() == ["accepted"]

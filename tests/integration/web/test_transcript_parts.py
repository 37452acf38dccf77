"""A transcript that only the log has is read in parts of bounded cost."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kingdom.access.rights import Right
from kingdom.bus import Bus, LogEntry
from kingdom.web.pages import transcript
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import load_workflow
from tests.contract.backends import BACKENDS
from tests.integration.web.site import serving
from tests.integration.web.test_acts import make_run

TURNS = 120


async def store_session(bus: Bus) -> str:
    """Store a run whose session only the log has, and return its id."""
    run = await make_run(bus)
    work = run.works[0].id
    async with bus.transaction() as transaction:
        record, workflow = await load_workflow(transaction, run.id)
        # The run has ended on a host that the store no longer knows.
        workflow.status, workflow.ended_at = WorkflowStatus.CANCELLED, workflow.created_at
        await transaction.put(record.replace(state=workflow.status, doc=workflow.document()))
        said = [("AgentStarted", {"session": "soldier-1/session", "host": "gone"})]
        for number in range(TURNS):
            # The log also has entries that are no part of a transcript.
            said += [("QueryFailed", {"error": f"error {number}"}), ("TaskStarted", {})]
        entries = [LogEntry(type=kind, actor="gone", data={"workId": work, **data}) for kind, data in said]
        await transaction.append(*(replace(each, aggregate_id=run.id) for each in entries))
    return run.id


async def test_the_log_of_a_session_without_a_transcript_is_read_in_parts_to_its_end(
    realm: Path, tmp_path: Path
) -> None:
    backend = BACKENDS["files"](str(realm))
    async with serving(backend, tmp_path) as site:
        run = await store_session(site.bus)
        program = site.bearing(await site.token("ci", Right.LOOK))
        lines, after, place = [], 0, f"/api/v1/runs/{run}/transcript?soldier=soldier-1&after="
        while after is not None:
            part = (await program.get(f"{place}{after}")).document
            assert len(part["items"]) <= 50
            lines += part["items"]
            after = part["next"]
    backend.close()
    assert [line["entry"].get("reason") for line in lines] == [None, *(f"error {number}" for number in range(TURNS))]


async def test_an_entry_has_the_same_anchor_in_whichever_part_it_is_shown(realm: Path, tmp_path: Path) -> None:
    backend = BACKENDS["files"](str(realm))
    async with serving(backend, tmp_path) as site:
        run = await store_session(site.bus)
        cookie = await site.signs_in("anna", Right.LOOK)
        place = f"/runs/{run}/transcript?soldier=soldier-1&after="
        parts = [(await site.get(f"{place}{after}", Cookie=cookie)).text for after in (0, 10, 99)]
    backend.close()
    first, second, third = (dict(re.findall(r'id="(L\d+)".*?(error \d+)', part)) for part in parts)
    assert first.keys() & second.keys()
    assert second.keys() & third.keys()
    assert first | second == second | first
    assert second | third == third | second


@pytest.mark.parametrize(("parts", "is_cut"), [(2, True), (3, False)])
async def test_a_download_that_is_cut_says_so_at_its_end(
    realm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int, *, is_cut: bool
) -> None:
    monkeypatch.setattr(transcript, "_PARTS_MAX", parts)
    backend = BACKENDS["files"](str(realm))
    async with serving(backend, tmp_path) as site:
        run = await store_session(site.bus)
        cookie = await site.signs_in("anna", Right.LOOK)
        reply = await site.send("GET", f"/runs/{run}/transcript.txt?soldier=soldier-1", Cookie=cookie)
    backend.close()
    *_, last = reply.text.splitlines()
    assert (f"error {TURNS - 1}" in reply.text) is not is_cut
    assert (last == "The transcript is longer: `kingdom logs soldier-1` shows all of it.") is is_cut

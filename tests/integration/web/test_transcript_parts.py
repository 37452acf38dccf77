"""A transcript that only the log has is read in parts of bounded cost."""

from dataclasses import replace
from pathlib import Path

from kingdom.access.rights import Right
from kingdom.bus import LogEntry
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import load_workflow
from tests.contract.backends import BACKENDS
from tests.integration.web.site import serving
from tests.integration.web.test_acts import make_run

TURNS = 120


async def test_the_log_of_a_session_without_a_transcript_is_read_in_parts_to_its_end(
    realm: Path, tmp_path: Path
) -> None:
    backend = BACKENDS["files"](str(realm))
    async with serving(backend, tmp_path) as site:
        run = await make_run(site.bus)
        work = run.works[0].id
        async with site.bus.transaction() as transaction:
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
        program = site.bearing(await site.token("ci", Right.LOOK))
        lines, after, place = [], 0, f"/api/v1/runs/{run.id}/transcript?soldier=soldier-1&after="
        while after is not None:
            part = (await program.get(f"{place}{after}")).document
            assert len(part["items"]) <= 50
            lines += part["items"]
            after = part["next"]
    backend.close()
    assert [line["entry"].get("reason") for line in lines] == [None, *(f"error {number}" for number in range(TURNS))]

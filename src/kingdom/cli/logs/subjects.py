"""Find the run, Work or soldier whose transcripts a command shows."""

import re

from kingdom.bus.port import Bus
from kingdom.bus.record import OnUnreadable, RecordQuery, read_documents
from kingdom.cli.framework.workflow_ids import find_work, find_workflow
from kingdom.errors import NotFound
from kingdom.soldiers.transcripts.run_sessions import LogSubject
from kingdom.workflow.model.run.work import SOLDIER_PREFIX, soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each_record

_WORK = re.compile(r"(?P<run>.+)-(?P<work>w\d+)")


async def find_subject(bus: Bus, text: str, on_unreadable: OnUnreadable) -> LogSubject:
    """Find a run, a Work such as `last-w2`, or a soldier by its name."""
    if text.startswith(SOLDIER_PREFIX):
        return await _run_of_soldier(bus, text, on_unreadable)
    if found := _WORK.fullmatch(text):
        workflow = await find_workflow(bus, found["run"])
        return LogSubject(workflow, work_id=find_work(workflow, found["work"]).id)
    return LogSubject(await find_workflow(bus, text))


async def _run_of_soldier(bus: Bus, soldier: str, on_unreadable: OnUnreadable) -> LogSubject:
    async with bus.transaction() as transaction:
        async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name)):
            for workflow in read_documents([record], Workflow, on_unreadable):
                if any(work.agent.session and soldier_of(work.agent.session) == soldier for work in workflow.works):
                    return LogSubject(workflow, soldier=soldier)
    raise NotFound(f"no run has a soldier {soldier!r} now: name its run, which shows earlier sessions too")

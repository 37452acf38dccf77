"""The transcript of the agent of a run, for whoever sits at the machine that has it."""

import asyncio

from kingdom.bus.port import Bus
from kingdom.cli.command import Call
from kingdom.cli.host_record import folders_here
from kingdom.cli.workflow_follow import rests
from kingdom.cli.workflow_view import transcript_line
from kingdom.errors import NotFound
from kingdom.soldiers.transcript import read_page
from kingdom.workflow import lifecycle
from kingdom.workflow.model.work import Work
from kingdom.workflow.model.workflow import Workflow

_POLL_SECONDS = 0.2


async def show_session(call: Call, bus: Bus, workflow: Workflow, work: Work | None, *, follow: bool) -> None:
    """Show what the agent of a Work was asked and did; following ends when the run rests or the session is over."""
    chosen = work or _latest(workflow)
    session = chosen.agent.session
    if session is None:
        raise NotFound(f"work {chosen.id} has no session: no agent was started on it since it was last undone")
    soldier_id = session.partition("/")[0]
    path = (await folders_here(bus, workflow, "transcript")).transcript(soldier_id)
    offset = 0
    while True:
        over = not follow or _is_over(await lifecycle.show(bus, workflow.id), chosen.id, session)
        try:
            page = read_page(path, offset)
        except FileNotFoundError as error:
            raise NotFound(f"the transcript of {soldier_id} is not here any more: {path}") from error
        for entry in page.entries:
            if call.output.json:
                call.output.document(entry)
            call.output.say(transcript_line(entry))
        if page.next_offset == offset:
            if over:
                return
            await asyncio.sleep(_POLL_SECONDS)
        offset = page.next_offset


def _latest(workflow: Workflow) -> Work:
    """Return the Work whose agent runs, or ran last."""
    with_session = [work for work in workflow.works if work.agent.session]
    if not with_session:
        raise NotFound(f"workflow {workflow.id} has no session: no agent was started yet")
    return with_session[-1]


def _is_over(workflow: Workflow, work_id: str, session: str) -> bool:
    work = workflow.find_work(work_id)
    return rests(workflow) or work is None or work.is_finished or work.agent.session != session

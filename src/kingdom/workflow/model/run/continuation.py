"""Whether a run goes on with the session of an earlier run."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from kingdom.workflow.model.references import SessionRef
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The earlier run whose session a new run continues, and the prompt for that session.

    If the session no longer exists, a new one gets the prompt of the template. The files of the new run are kept until
    `kept_until`, so that another run can continue its session.
    """

    workflow_id: str
    query: str
    kept_until: datetime


def find_session(workflow: Workflow) -> SessionRef | None:
    """Return the session with which another run can go on; None if there is none yet, or another run already has it."""
    work = workflow.works[-1] if workflow.works else None
    if work is None or workflow.placement is None or workflow.continued_by or not workflow.is_over:
        return None
    if work.agent.session and work.work_space_id:
        return SessionRef(
            workflow_id=workflow.id,
            host=workflow.placement.host,
            token=work.agent.session,
            work_space_id=work.work_space_id,
            home_run=home_run(workflow, work),
        )
    if workflow.earlier_session and work.agent.uses_earlier_session is None:
        # No agent has started, so the earlier session is unchanged.
        return msgspec.structs.replace(workflow.earlier_session, workflow_id=workflow.id)
    return None


def session_for(workflow: Workflow, work: Work) -> SessionRef | None:
    """Return the session of an earlier run with which the agent of a Work goes on, if it is on the host of the run."""
    session, placement = workflow.earlier_session, workflow.placement
    is_here = session is not None and placement is not None and placement.host == session.host
    is_possible = work is workflow.works[0] and work.agent.uses_earlier_session is not False
    return session if is_here and is_possible else None


def home_run(workflow: Workflow, work: Work | None) -> str:
    """Return the run whose HOME the agent of a Work uses."""
    return (
        workflow.earlier_session.home_run
        if workflow.earlier_session and work and work.agent.uses_earlier_session
        else workflow.id
    )

"""Questions as Generals ask them."""

from datetime import datetime, timedelta
from typing import Any

from kingdom.clock import utc_now
from kingdom.court.questions import APPROVE, REJECT, WITHOUT_RUN, HumanQuestion


def question(task: str, **more: Any) -> HumanQuestion:
    """Return a question of an assignment."""
    now = utc_now()
    given: dict[str, Any] = {"general": "gen-hello", "text": "May I?", "choices": ("yes", "no"), "asked_at": now} | more
    return HumanQuestion(id=task, assignment_id=task, workflow_id=f"wf-{task}", due_at=now + timedelta(days=1), **given)


def approval(petition: str, text: str, asked_at: datetime | None = None, general: str = "gen-hello") -> HumanQuestion:
    """Return the question whether a petition is approved."""
    more: dict[str, Any] = {"petition": petition, "text": text, "choices": (APPROVE, REJECT), "exact": True}
    more["general"] = general
    made = question(petition, **more, **({"asked_at": asked_at} if asked_at else {}))
    return HumanQuestion(
        **{**{name: getattr(made, name) for name in made.__struct_fields__}, "workflow_id": WITHOUT_RUN}
    )

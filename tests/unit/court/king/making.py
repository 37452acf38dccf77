"""Events and Generals as tests of the King need them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.package import General, GeneralPolicy, Package, Schedule, Subscription
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
TEMPLATE = WorkflowTemplate(
    id="tpl", name="do it", works=(WorkDefinition(name="all", tasks=(TaskDefinition(query="do it"),)),)
)


def make_event(number: int = 1, event_type: str = "github.pr.comment", **more: Any) -> ExternalEvent:
    source = more.pop("source", "github")
    fields: dict[str, Any] = {
        "id": f"evt-{source}-{number}",
        "repo": "acme/app",
        "payload": {"number": number},
        "priority": Priority.NORMAL,
        "created_at": NOON + timedelta(seconds=number),
        "status": EventStatus.PENDING,
    } | more
    return ExternalEvent(type=event_type, source=source, **fields)


def make_package(name: str = "gen-pr", *subscribes: Subscription, **more: Any) -> Package:
    policy, schedules = GeneralPolicy(**more.pop("policy", {})), tuple(more.pop("schedules", ()))
    general = General(
        name=name, description="does it", subscribes=subscribes, policy=policy, schedules=schedules, **more
    )
    return Package(general=general, template=TEMPLATE, directory=f"generals/{name}")


def wants(event_type: str = "*", **more: Any) -> Subscription:
    return Subscription(type=event_type, **more)


def every(cron: str, name: str = "nightly", **more: Any) -> Schedule:
    return Schedule(name=name, cron=cron, task_type="report.daily", **more)

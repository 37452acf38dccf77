"""The streams of the engine: its input, the commands for hosts, and the events for requesters."""

from datetime import timedelta

from kingdom.bus.stream import RetryPolicy, Stream, Topology
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.catalog import EVENT_TYPES

_RETRY = RetryPolicy(cap=timedelta(seconds=60))
# The input of the engine for each run, in order. The partition key is the run id.
WORKFLOW_STREAM = Stream(
    name="workflow",
    ordered=True,
    retry=_RETRY,
    subscribes=frozenset(
        {kind.__name__ for kind in EVENT_TYPES if issubclass(kind, answers.HostAnswer)}
        | {events.WorkflowDisplaced.__name__}
    ),
)
# Events of resources and hosts. The partition key is the id of the resource or host.
REGISTRY_STREAM = Stream(
    name="registry",
    ordered=True,
    retry=_RETRY,
    subscribes=frozenset(
        kind.__name__
        for kind in (
            events.GitDeleted,
            events.McpServerUnregistered,
            events.HostRegistered,
            events.HostLost,
            events.HostRunsLeft,
        )
    ),
)
# Commands for a host, in order for each run. Commands that stop an agent have the separate control stream, so a command
# that fails again and again cannot block them.
COMMAND_STREAM = Stream(name="soldier.{host}", ordered=True, retry=_RETRY)
CONTROL_STREAM = Stream(name="soldier.{host}.control", ordered=True, retry=_RETRY)
# Events for the requester of runs, in order for each run.
REQUESTER_STREAM = Stream(name="run.{asker}", ordered=True, retry=_RETRY)


def requester_stream(requester: str) -> str:
    """Return the stream with the events for a requester of runs."""
    return f"run.{requester}"


ENGINE_STREAMS = (WORKFLOW_STREAM.name, REGISTRY_STREAM.name)
STREAMS = (WORKFLOW_STREAM, REGISTRY_STREAM, COMMAND_STREAM, CONTROL_STREAM, REQUESTER_STREAM)
TOPOLOGY = Topology(STREAMS)

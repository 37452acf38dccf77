"""The streams of the engine: what it listens to, and where the commands for a host go."""

from datetime import timedelta

from kingdom.bus.retry import RetryPolicy
from kingdom.bus.stream import Stream, Topology
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.catalog import EVENT_TYPES

_RETRY = RetryPolicy(cap=timedelta(seconds=60))
# All that is said of a run, in its order: the key is the run's id.
WORKFLOW_STREAM = Stream(
    name="workflow",
    ordered=True,
    retry=_RETRY,
    subscribes=frozenset(
        {kind.__name__ for kind in EVENT_TYPES if issubclass(kind, answers.HostAnswer)}
        | {events.WorkflowDisplaced.__name__}
    ),
)
# All that is said of what runs are made from and run on: the key is the thing's id.
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
# What a host shall do, in the order of each run; a command that no code understands shall not hold up a stop.
COMMAND_STREAM = Stream(name="soldier.{host}", ordered=True, retry=_RETRY)
CONTROL_STREAM = Stream(name="soldier.{host}.control", ordered=True, retry=_RETRY)
# What whoever asked for a run is told of it, in the order of each run.
REQUESTER_STREAM = Stream(name="run.{asker}", ordered=True, retry=_RETRY)


def requester_stream(asker: str) -> str:
    """Return the stream by which somebody is told of the runs that they asked for."""
    return f"run.{asker}"


ENGINE_STREAMS = (WORKFLOW_STREAM.name, REGISTRY_STREAM.name)
STREAMS = (WORKFLOW_STREAM, REGISTRY_STREAM, COMMAND_STREAM, CONTROL_STREAM, REQUESTER_STREAM)
TOPOLOGY = Topology(STREAMS)

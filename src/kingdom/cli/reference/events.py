"""The reference page of events and streams."""

from collections.abc import Iterator

from kingdom.bus.stream import Stream
from kingdom.chronicle.catalog import CATALOG as INTERNAL
from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.court.streams import STREAMS
from kingdom.workflow.model.messages.catalog import CATALOG as DOMAIN
from kingdom.workflow.model.messages.commands import COMMANDS

_WORDS = """\
There are four kinds of events:

- **External events** come from GitHub, Jira, Slack, a schedule or `kingdom event send`.
  [The Sentinel](../sentinel.md#what-comes-in) lists the types; a General subscribes to them.
- **Domain events** are the steps of a run. [Workflow events](../workflow-events.md) lists each with its payload, its
  source and its effect.
- **Commands** tell a host what to do. They are on [the same page](../workflow-events.md#commands).
- **Internal events** are observations of the system itself. They trigger nothing.
  [Internal events](../internal-events.md) lists each with its data.

Domain and internal events are kept in the log: `kingdom bus tail` shows it.
"""
_STREAMS = """\
## Streams

A stream has one consumer. In an ordered stream the events of a key are handled one after the other. An event that
fails in all its attempts is dead: `kingdom bus dead list` shows it. In an ordered stream it blocks the later events of
its key, unless the stream skips dead events. A name in braces is a placeholder.
"""


def page() -> str:
    """Return the page of the documentation."""
    parts = (*_domain(), *_internal(), _STREAMS, *_streams())
    return "\n".join([beginning("Events", "events", _WORDS), *parts])


def _domain() -> Iterator[str]:
    yield "## Domain events and commands\n"
    groups = [(group, (entry.event.__name__ for entry in entries)) for group, entries in DOMAIN.items()]
    groups.append(("Commands", (command.__name__ for command in COMMANDS)))
    rows = (
        (f"[{group}](../workflow-events.md#{_anchor(group)})", ", ".join(map(code, names))) for group, names in groups
    )
    yield from table(("About", "Types"), rows)


def _internal() -> Iterator[str]:
    yield "## Internal events\n"
    categories: dict[str, list[str]] = {}
    for name in INTERNAL:
        categories.setdefault(name.partition(".")[0], []).append(name)
    rows = (
        (f"[{category}](../internal-events.md#{_anchor(category)})", ", ".join(map(code, names)))
        for category, names in categories.items()
    )
    yield from table(("About", "Types"), rows)


def _streams() -> Iterator[str]:
    heads = ("Stream", "Ordered", "Attempts", "Lease", "Deadline of a handler", "Subscribes to")
    yield from table(heads, (_stream(each) for each in STREAMS))


def _stream(stream: Stream) -> tuple[str, ...]:
    blocking = "yes, a dead event blocks its key" if stream.on_dead == "block" else "yes, a dead event is skipped"
    return (
        code(stream.name),
        blocking if stream.ordered else "no",
        str(stream.retry.max_attempts),
        f"{stream.lease.total_seconds():g} s",
        f"{stream.deadline.total_seconds():g} s",
        ", ".join(map(code, sorted(stream.subscribes))) or "only what is published to it by name",
    )


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")

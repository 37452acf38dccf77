"""All pages of the reference by name."""

from collections.abc import Callable, Mapping

from kingdom.cli.reference import commands, configuration, environment, events, metrics, shapes

PAGES: Mapping[str, Callable[[], str]] = {
    "cli": commands.page,
    "configuration": configuration.page,
    "environment": environment.page,
    "events": events.page,
    "json": shapes.page,
    "metrics": metrics.page,
}

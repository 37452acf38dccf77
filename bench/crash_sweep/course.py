"""What a sweep crashes: a course with its processes, its result and its broken variants."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.crash_sweep.process import Play
from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import CLIENT, Point


@dataclass(frozen=True, slots=True)
class Variant:
    """A broken variant, the points at which the sweep must detect it, and words of the finding that it must cause."""

    break_it: Callable[[], None]
    shows_at: tuple[Point, ...]
    finding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What happens in each run of a sweep.

    The `roles` may die. The `servers` start before them and end after them. The client makes the course happen, and the
    run ends with it. `set_up` is called when the servers have started. With `distinct_steps`, each distinct step is one
    point however often it happens, and all roles die once in the same run. A broken variant may hang, so it is given up
    after `variant_seconds`.
    """

    roles: Mapping[str, Play]
    client: Play
    read_ending: Callable[[Stage], Coroutine[Any, Any, Any]]
    judge: Callable[[Any, Any, Sequence[Point]], list[str]]
    variants: Mapping[str, Variant]
    ends_last: str = ""
    servers: Mapping[str, Play] = field(default_factory=dict)
    set_up: Callable[[Stage], None] = lambda _: None
    distinct_steps: bool = False
    variant_seconds: float = 120.0

    @property
    def plays(self) -> Mapping[str, Play]:
        """Return what each process does."""
        return {**self.servers, **self.roles, CLIENT: self.client}

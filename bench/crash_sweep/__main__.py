"""`python -m bench.crash_sweep`: exits 0 only if the run survives every crash and every broken variant is detected."""

import argparse
import json
import logging
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.crash_sweep import scene
from bench.crash_sweep.courses import COURSES, MERGED, RUN
from bench.crash_sweep.model import model_stub
from bench.crash_sweep.places import BACKENDS
from bench.crash_sweep.roles import opened
from bench.crash_sweep.steps import LABEL
from bench.crash_sweep.sweep import Sweep, SweepResult
from bench.servers import exit_on_sigterm
from kingdom.log_output import configure_logs
from kingdom.soldiers.settings import ModelSettings, SoldierSettings

SCRIPTED: Final = "scripted"
CLAUDE: Final = "claude"
# The bounds: the lowest number of crashes of a default sweep, and the highest share of points that runs never reach.
POINTS_MIN = {SCRIPTED: 100, CLAUDE: 20}
MERGED_POINTS_MIN = 150
MISSED_SHARE_MAX = 0.05
# The default number of points. It is low for claude, because each start of the program takes a second.
_POINTS = {SCRIPTED: "all", CLAUDE: "20"}
_JOBS = {SCRIPTED: 3, CLAUDE: 2}
_PATIENCE_SECONDS = 300.0
_NO_KEY = "not-a-real-key"
_DETAILS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, check and report."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.WARNING)
    began = time.monotonic()
    backends = list(BACKENDS) if options.backend == "both" else [options.backend]
    with _soldiers(options.agent) as soldiers:
        swept = {backend: _sweep(backend, soldiers, options) for backend in backends}
    complaints = [words for backend in backends for words in _complaints(backend, swept[backend], options)]
    for words in complaints:
        print(words, file=sys.stderr)
    figures = json.dumps(
        {
            "ok": not complaints,
            "course": options.course,
            "agent": options.agent,
            "seed": options.seed,
            "seconds": round(time.monotonic() - began, 1),
            "complaints": len(complaints),
            "details": complaints[:_DETAILS],
            "backends": {backend: _figures(found) for backend, found in swept.items()},
        }
    )
    if options.json == "-":
        print(figures)
    else:
        Path(options.json).write_text(figures + "\n")
    return 1 if complaints else 0


def _sweep(backend: str, soldiers: SoldierSettings, options: argparse.Namespace) -> SweepResult:
    # The directory of a backend is not inside another one, because the processes of a run are found by its directory.
    with tempfile.TemporaryDirectory(prefix="kingdom-crash-sweep-") as name:
        directory = Path(name).resolve()

        async def prepare(url: str) -> None:
            if options.course == RUN:
                await _store_run(url, directory / "sources", options)

        with BACKENDS[backend](directory, prepare) as place:
            jobs, seconds = options.jobs or _JOBS[options.agent], options.patience or _PATIENCE_SECONDS
            course = COURSES[options.course]
            sweep = Sweep(course, backend, place, directory, soldiers=soldiers, jobs=jobs, seconds=seconds)
            wanted = options.points or _POINTS[options.agent]
            return sweep.run(
                None if wanted == "all" else int(wanted),
                options.seed,
                variant=options.variant,
                catch=not options.no_variants,
            )


async def _store_run(url: str, sources: Path, options: argparse.Namespace) -> None:
    """Create the repositories and the template of the run."""
    for repository in scene.REPOSITORIES:
        scene.make_repository(sources / repository)
    # A killed agent fails its Work once, so one retry is allowed. After any other crash the checks report a retry.
    made_from = scene.template(works=options.works, retries=1, offers_tools=options.agent == CLAUDE)
    async with opened(url) as bus:
        await scene.store_resources(bus, sources, made_from)


@contextmanager
def _soldiers(agent: str) -> Iterator[SoldierSettings]:
    """Yield the settings of the agents. The stub of their model runs until the end of the sweep."""
    if agent == SCRIPTED:
        yield SoldierSettings()
        return
    with model_stub() as url:
        yield SoldierSettings(agent=CLAUDE, model=ModelSettings(url=url, key=_NO_KEY))


def _complaints(backend: str, swept: SweepResult, options: argparse.Namespace) -> list[str]:
    complaints = [f"{backend}: {finding}" for finding in swept.findings]
    complaints += [f"{backend}: variant {name} was not caught" for name, found in swept.caught.items() if not found]
    points_min = MERGED_POINTS_MIN if options.course == MERGED else POINTS_MIN[options.agent]
    if options.points is None and not options.variant and swept.killed < points_min:
        complaints.append(f"{backend}: only {swept.killed} points")
    if swept.missed > max(1, MISSED_SHARE_MAX * swept.tried):
        complaints.append(f"{backend}: {swept.missed} of {swept.tried} points were never reached")
    return complaints


def _figures(swept: SweepResult) -> dict[str, Any]:
    points = {role: _by_kind(kinds) for role, kinds in swept.points.items()}
    return {
        "points": points,
        "points_total": sum(count for kinds in points.values() for count in kinds.values()),
        "tried": swept.tried,
        "killed": swept.killed,
        "killed_by_kind": swept.killed_by_kind,
        "finished": swept.finished,
        "missed": swept.missed,
        "findings": len(swept.findings),
        "steps_again": swept.steps_again,
        "cost_usd_reference": round(swept.cost_usd_reference, 4),
        "variants_caught": swept.caught,
        "seconds_reference": swept.seconds_reference,
        "seconds_longest": swept.seconds_longest,
    }


def _by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the number of points of each kind, without the labels of distinct steps."""
    kinds: Counter[str] = Counter()
    for kind, count in counts.items():
        name, label, _ = kind.partition(LABEL)
        kinds[name] += min(count, 1) if label else count
    return dict(kinds)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.crash_sweep", description=sys.modules["bench.crash_sweep"].__doc__
    )
    parser.add_argument("--backend", choices=[*BACKENDS, "both"], default="both", help="the backend of the bus")
    parser.add_argument(
        "--course",
        choices=list(COURSES),
        default=RUN,
        help="what is swept: one run of engine and host, or a whole court from a ticket to its merged pull request",
    )
    parser.add_argument(
        "--agent",
        choices=[SCRIPTED, CLAUDE],
        default=SCRIPTED,
        help="the agent of a run; claude is the real program in its sandbox, with a stub of the model",
    )
    parser.add_argument(
        "--points",
        type=_number_or_all,
        metavar="N",
        help="the number of points, evenly spread, or `all` (default; 20 with claude)",
    )
    parser.add_argument("--works", type=int, default=3, help="the number of Works of the run (default 3)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(32), help="the seed of an earlier sweep, to repeat it"
    )
    parser.add_argument("--jobs", type=int, help="the number of concurrent runs (default 3; 2 with claude)")
    parser.add_argument("--patience", type=float, help="the time limit of a run in seconds (default 300)")
    variants = [name for course in COURSES.values() for name in course.variants]
    parser.add_argument("--variant", choices=variants, help="sweep a broken variant at the points where it shows")
    parser.add_argument("--no-variants", action="store_true", help="do not test the broken variants")
    parser.add_argument(
        "--json", default="-", metavar="FILE", help="the file for the figures; - prints them as the last line (default)"
    )
    options = parser.parse_args(arguments)
    if options.variant and options.variant not in COURSES[options.course].variants:
        parser.error(f"{options.variant} is a variant of another course: add --course")
    if options.course == MERGED and options.agent != SCRIPTED:
        parser.error(f"the course {MERGED} has scripted agents only")
    return options


def _number_or_all(words: str) -> str:
    return words if words == "all" else str(int(words))


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())

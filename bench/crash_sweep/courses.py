"""The courses that can be swept: one run of engine and host, and a whole court until a pull request is merged."""

from collections.abc import Mapping, Sequence

from bench.crash_sweep import roles
from bench.crash_sweep.course import Course
from bench.crash_sweep.ending import Ending, read_ending
from bench.crash_sweep.judge import judge
from bench.crash_sweep.merged import roles as court
from bench.crash_sweep.merged.ending import judge_merged, read_merged_ending
from bench.crash_sweep.merged.variants import MERGED_VARIANTS
from bench.crash_sweep.steps import ENGINE, HOST, Point
from bench.crash_sweep.variants import VARIANTS

RUN, MERGED = "run", "merged"


def _judge_run(reference: Ending, ending: Ending, points: Sequence[Point]) -> list[str]:
    return judge(reference, ending, *points)


COURSES: Mapping[str, Course] = {
    RUN: Course(
        roles={ENGINE: roles.play_engine, HOST: roles.play_host},
        client=roles.play_client,
        read_ending=read_ending,
        judge=_judge_run,
        variants=VARIANTS,
        ends_last=ENGINE,
    ),
    MERGED: Course(
        roles=court.COURT_ROLES,
        servers=court.COURT_SERVERS,
        client=court.play_client,
        # A host that ends publishes that it is lost, and the role general handles it.
        ends_last="general",
        set_up=court.set_up,
        read_ending=read_merged_ending,
        judge=judge_merged,
        variants=MERGED_VARIANTS,
        distinct_steps=True,
        variant_seconds=300.0,
    ),
}

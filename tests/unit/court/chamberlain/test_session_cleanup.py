"""Which sessions are orphaned, which are to be killed, and which have ended."""

from datetime import UTC, datetime, timedelta

import pytest

from kingdom.court.chamberlain.session_cleanup import GRACE, SessionFacts, SessionVerdict, judge_sessions
from kingdom.court.sessions import SoldierSession

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)
SOLDIER = "soldier-1-1"
SECOND = timedelta(seconds=1)


def verdict(*, wanted: bool, up: bool, lives: bool | None, age: timedelta = timedelta(minutes=5)) -> SessionVerdict:
    session = SoldierSession(assignment_id="task-1", general="gen-pr", host="box", started_at=NOW - age)
    return judge_sessions({SOLDIER: session}, {SOLDIER: SessionFacts(wanted, up, lives)}, NOW)


@pytest.mark.parametrize("lives", [True, None])
def test_a_session_that_is_wanted_and_may_run_is_left_alone(*, lives: bool | None) -> None:
    assert not verdict(wanted=True, up=True, lives=lives)


@pytest.mark.parametrize(("up", "lives"), [(False, None), (False, True), (True, False)])
def test_a_wanted_session_whose_host_or_process_is_gone_is_orphaned(*, up: bool, lives: bool | None) -> None:
    assert verdict(wanted=True, up=up, lives=lives) == SessionVerdict(orphaned=(SOLDIER,))


def test_an_unwanted_session_that_runs_is_killed() -> None:
    assert verdict(wanted=False, up=True, lives=True) == SessionVerdict(to_kill=(SOLDIER,))


@pytest.mark.parametrize("lives", [False, None])
def test_an_unwanted_session_that_does_not_run_here_has_ended(*, lives: bool | None) -> None:
    assert verdict(wanted=False, up=True, lives=lives) == SessionVerdict(ended=(SOLDIER,))


@pytest.mark.parametrize(("wanted", "up", "lives"), [(True, False, None), (False, True, True), (False, True, False)])
def test_a_session_within_its_grace_period_is_left_alone(*, wanted: bool, up: bool, lives: bool | None) -> None:
    assert not verdict(wanted=wanted, up=up, lives=lives, age=GRACE)
    assert verdict(wanted=wanted, up=up, lives=lives, age=GRACE + SECOND)

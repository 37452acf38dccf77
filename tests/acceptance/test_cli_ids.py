"""Every item can be named by its whole id, by a unique part of it, or as `last`."""

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kingdom.bootstrap import open_bus
from kingdom.cli.framework.workflow_ids import find_workflow
from kingdom.clock import utc_now
from kingdom.ids import first_id
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow import templates
from kingdom.workflow.model.steps import operations
from kingdom.workflow.records import save_step
from kingdom.workflow.template_file import read_template
from tests.acceptance.sample_store import AGAIN, ENDED, EVENT, PETITION, TASK, TEMPLATE, InProcessCli, SampleStore


def test_show_works_for_every_kind_of_id(cli_on_sample: InProcessCli, sample: SampleStore) -> None:
    nouns = {
        sample.run: ("workflow", "show", sample.run),
        "last": ("workflow", "show", "last"),
        f"wf-{TASK}-w1-t1": ("workflow", "show", f"wf-{TASK}"),
        TASK: ("assignment", "show", TASK),
        EVENT: ("event", "show", EVENT),
        PETITION: ("petition", "show", PETITION),
        "3f9a01bc": ("petition", "show", PETITION),
        ENDED[:-4]: ("assignment", "show", ENDED),
        "greet": ("template", "show", "greet"),
        sample.dead: ("bus", "dead", "show", sample.dead),
    }
    for thing, words in nouns.items():
        shown = cli_on_sample("show", thing, "--json")
        assert (shown.code, shown.out) == (0, cli_on_sample(*words, "--json").out), thing
    unknown = cli_on_sample("show", "nobody-has-this")
    assert (unknown.code, "nothing has the id 'nobody-has-this': `kingdom ps --all`" in unknown.err) == (1, True)
    assert "there is no General 'gen-ghost'" in cli_on_sample("show", "gen-ghost").err
    assert "has no unique checkpoint 'w1-c9'; it has: none" in cli_on_sample("show", "last-w1-c9").err
    assert "has no unique task 'w9-t1'; it has: w1-t1" in cli_on_sample("show", "last-w9-t1").err
    assert "has no unique work 'w9'; it has: w1" in cli_on_sample("show", "last-w9").err
    assert "'wf-' matches" in cli_on_sample("show", "wf-").err


def test_a_petition_is_named_by_the_last_six_characters_of_its_id(cli_on_sample: InProcessCli) -> None:
    assert cli_on_sample("petition", "show", "9a01bc", "--json").document["id"] == PETITION
    assert cli_on_sample("show", "9a01bc").out == cli_on_sample("petition", "show", "9a01bc").out
    assert (cli_on_sample("show", "a01bc").code, cli_on_sample("petition", "show", "a01bc").code) == (1, 1)
    assert "write at least the last 6 characters" in cli_on_sample("petition", "show", "a01bc").err


def test_an_event_or_an_assignment_is_named_by_the_beginning_of_its_id(
    sample: SampleStore, cli: InProcessCli, tmp_path: Path
) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    for begun in (EVENT[:-1], EVENT[:10]):
        assert cli("event", "show", begun, "--json").document["id"] == EVENT
        assert cli("show", begun, "--json").document["id"] == EVENT
        assert cli("why", begun, "--json").document["event"]["id"] == EVENT
        assert cli("explain", begun, "--json").document["event"]["id"] == EVENT
    assert cli("event", "show", "cli-2026", "--json").document["id"] == EVENT
    assert cli("assignment", "show", "20260206", "--json").document["id"] == ENDED
    assert cli("explain", "task-20260206", "--json").document["about"] == ENDED
    for number in range(11):
        cli.run_json("event", "send", "--type", "demo.hello", "--id", f"{EVENT}-{number:02}")
    assert cli("event", "show", EVENT, "--json").document["id"] == EVENT
    for words in (("event", "show"), ("show",), ("why",), ("explain",)):
        few, many, unknown = (cli(*words, begun) for begun in (f"{EVENT}-0", "evt-", "evt-nobody"))
        assert (few.code, many.code, unknown.code) == (1, 1, 1)
        assert f"'{EVENT}-0' matches {EVENT}-09 (pending), {EVENT}-08 (pending), " in few.err
        assert (" and more" in few.err, " and more: write more of the id" in many.err) == (False, True)
        assert "`kingdom event list`" in unknown.err


def test_an_irreversible_command_needs_four_characters_of_an_id(cli_on_sample: InProcessCli) -> None:
    assert cli_on_sample("workflow", "show", "001").code == 0
    for words in (("cancel", "001"), ("cancel", "wf-tas"), ("workflow", "delete", "001")):
        refused = cli_on_sample(*words)
        assert (refused.code, "write at least 4 characters of the id" in refused.err) == (1, True)


NOW = utc_now()
BY_HAND, OF_COURT = "wf-01k9x3v7m2q4t6", "wf-task-20260207-001"


def run_id_at(made: datetime, *, court: bool) -> str:
    """Return the id of a run that was created at this time, by the court or by a person."""
    return f"wf-task-{made:%Y%m%d}-001" if court else first_id("wf", made)


def runs_a_minute_apart(since: datetime, *, court_first: bool) -> list[tuple[str, datetime]]:
    """Return the ids and creation times of two runs, the newest last. One of them is a run of the court."""
    moments = ((since, court_first), (since + timedelta(minutes=1), not court_first))
    return [(run_id_at(made, court=court), made) for made, court in moments]


async def newest(realm: Path, runs: Sequence[tuple[str, datetime]], *, ended: bool) -> str:
    """Create runs, and return the id of the run that `last` refers to."""
    application = declare_application(Realm())
    async with open_bus(f"file:{realm}", application.topology, application.kinds) as bus:
        template = await templates.create_template(bus, read_template(TEMPLATE, "greet.yaml"), actor="tester")
        for run, made in runs:
            async with bus.transaction() as transaction:
                step = operations.create(template, run, made)
                if ended:
                    operations.cancel(step, "it is not needed")
                await save_step(transaction, step, None, "tester")
        return (await find_workflow(bus, "last")).id


@pytest.mark.parametrize("ids", [(OF_COURT, BY_HAND), (BY_HAND, OF_COURT)])
async def test_last_is_the_newest_run_regardless_of_its_id(tmp_path: Path, ids: tuple[str, str]) -> None:
    runs = [(ids[0], NOW - timedelta(minutes=1)), (ids[1], NOW)]
    assert await newest(tmp_path / "realm", runs, ended=False) == ids[1]


@pytest.mark.parametrize("days", [1, 20, 60])
@pytest.mark.parametrize("court_first", [True, False])
async def test_last_is_the_newest_run_even_if_all_have_ended(
    tmp_path: Path,
    days: int,
    court_first: bool,  # noqa: FBT001 - a case of the test
) -> None:
    runs = runs_a_minute_apart(NOW - timedelta(days=days), court_first=court_first)
    older = runs_a_minute_apart(NOW - timedelta(days=days + 3), court_first=not court_first)
    assert await newest(tmp_path / "realm", [*older, *runs], ended=True) == runs[-1][0]


def test_cancel_last_cancels_the_newest_run(sample: SampleStore, cli: InProcessCli, tmp_path: Path) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    made = cli("workflow", "create", "greet", "--json").document["id"]
    assert cli("cancel", "last", "--json").document["id"] == made
    assert [each["id"] for each in cli("workflow", "list", "--json").document] == [made, f"wf-{TASK}", sample.run]
    result = cli("explain", "last", "--html", "story.html").out
    assert result == f"Wrote the timeline of {made} to story.html: open it in a browser.\n"


@pytest.mark.parametrize("task", [TASK, AGAIN])
def test_cancel_also_accepts_the_id_of_an_assignment(
    sample: SampleStore, cli: InProcessCli, tmp_path: Path, task: str
) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    cancelled = cli("cancel", task, "--json")
    assert (cancelled.code, cancelled.document["id"]) == (0, f"wf-{TASK}")
    assert cancelled.document["wanted"] or cancelled.document["status"] == "CANCELLED"
    without = cli("cancel", ENDED)
    assert (without.code, f"{ENDED} is completed and has no run" in without.err) == (1, True)


def test_last_is_the_newest_object_of_the_kind_that_a_command_uses(
    sample: SampleStore, cli: InProcessCli, tmp_path: Path
) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    sent = cli("event", "send", "--type", "demo.hello", "--json").document["id"]
    assert cli("event", "show", "last", "--json").document["id"] == sent
    assert cli("why", "last", "--json").document["event"]["id"] == sent
    assert f"{sent} is pending" in cli("event", "reroute", "last").err
    assert cli("assignment", "show", "last", "--json").document["id"] == AGAIN

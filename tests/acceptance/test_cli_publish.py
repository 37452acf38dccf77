import json
from collections.abc import Sequence
from pathlib import Path

from kingdom.ids import new_event_id
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.store import open_rows
from tests.acceptance.terminal import SHOP


def ndjson(path: Path, lines: Sequence[object]) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def test_an_event_is_stored_in_subscribed_streams_and_its_id_is_returned(
    cli_on_database: InProcessCli, dsn: str
) -> None:
    published = cli_on_database.run_json(
        *("bus", "publish", "--app", SHOP, "--type", "OrderPlaced", "--payload", '{"order": 7}'),
        *("--aggregate", "order/7", "--owner", "ada", "--attribute", "market=north"),
    )
    (row,) = open_rows(dsn)
    assert published == {
        "eventId": str(row["event_id"]),
        "type": "OrderPlaced",
        "streams": ["orders"],
        "duplicates": [],
    }
    assert row["payload_json"] == {"order": 7}
    assert (row["aggregate_type"], row["aggregate_id"], row["owner_id"]) == ("order", "7", "ada")
    assert row["attributes"] == {"market": "north"}
    assert row["max_attempts"] == 2


def test_an_existing_event_is_a_duplicate(cli_on_database: InProcessCli, dsn: str) -> None:
    words = ("bus", "publish", "--app", SHOP, "--type", "LineAdded", "--key", "k", "--id", str(new_event_id()))
    assert "stored in lines" in cli_on_database(*words).out
    again = cli_on_database(*words)
    assert again.code == 0
    assert "already" in again.out
    assert cli_on_database.run_json(*words)["duplicates"] == ["lines"]
    assert [row["ordered"] for row in open_rows(dsn)] == [True]


def test_a_type_without_a_subscriber_is_not_stored_and_fails(cli_on_database: InProcessCli, dsn: str) -> None:
    done = cli_on_database("bus", "publish", "--app", SHOP, "--type", "Unheard")
    assert done.code == 1
    assert "no stream subscribes to Unheard" in done.err
    assert open_rows(dsn) == []


def test_without_the_application_any_stream_is_accepted_if_its_order_is_given(
    cli_on_database: InProcessCli, dsn: str
) -> None:
    words = ("bus", "publish", "--stream", "lines", "--type", "LineAdded", "--key", "k")
    assert cli_on_database(*words, "--ordered").code == 0
    assert cli_on_database(*words, "--unordered").code == 0
    assert [row["ordered"] for row in open_rows(dsn)] == [True, False]


def test_a_payload_is_read_from_a_file_or_from_standard_input(
    cli_on_database: InProcessCli, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    words = ("bus", "publish", "--stream", "orders", "--type", "OrderPlaced", "--payload")
    cli_on_database.run_json(*words, f"@{tmp_path / 'payload.json'}")
    cli_on_database.run_json(*words, "-", text='{"from": "pipe"}')
    assert [row["payload_json"] for row in open_rows(dsn)] == [{"from": "file"}, {"from": "pipe"}]


def test_a_delayed_event_is_not_due_and_why_says_so(cli_on_database: InProcessCli) -> None:
    published = cli_on_database.run_json(
        "bus", "publish", "--stream", "orders", "--type", "OrderPlaced", "--delay", "2h"
    )
    (situation,) = cli_on_database.run_json("bus", "why", published["eventId"])
    assert situation["why"].startswith("It is not due before")
    assert situation["status"] == "PENDING"


def test_a_file_is_published_line_by_line_and_a_rerun_finds_duplicates(
    cli_on_database: InProcessCli, dsn: str, tmp_path: Path
) -> None:
    count = 2500
    events = [{"eventId": str(new_event_id()), "payload": {"n": n}} for n in range(count)]
    file = ndjson(tmp_path / "events.ndjson", events)
    words = ("bus", "publish", "--app", SHOP, "--type", "OrderPlaced", "--file", file)
    first = cli_on_database(*words)
    assert first.code == 0
    assert first.out.startswith(f"Stored {count} event(s); 0 already existed")
    assert [row["payload_json"]["n"] for row in open_rows(dsn)] == list(range(count))
    again = cli_on_database(*words, "--json")
    assert [line["duplicates"] for line in again.documents] == [["orders"]] * count


def test_a_file_with_a_bad_line_stores_nothing(cli_on_database: InProcessCli, dsn: str, tmp_path: Path) -> None:
    file = ndjson(tmp_path / "events.ndjson", [*({"type": "OrderPlaced"} for _ in range(1500)), ["no event"]])
    done = cli_on_database("bus", "publish", "--app", SHOP, "--file", file)
    assert done.code == 1
    assert "line 1501" in done.err
    assert open_rows(dsn) == []


def test_lines_from_a_pipe_are_stored_until_one_is_bad(cli_on_database: InProcessCli, dsn: str) -> None:
    good = "".join(f'{{"type": "OrderPlaced", "payload": {{"n": {n}}}}}\n' for n in range(1000))
    done = cli_on_database("bus", "publish", "--app", SHOP, "--file", "-", text=good + "{}\n")
    assert done.code == 1
    assert "line 1001" in done.err
    assert "1000 event(s) of earlier lines were stored" in done.err
    assert len(open_rows(dsn)) == 1000


def test_a_file_with_unsubscribed_types_fails_after_storing_the_rest(
    cli_on_database: InProcessCli, dsn: str, tmp_path: Path
) -> None:
    file = ndjson(tmp_path / "events.ndjson", [{"type": "OrderPlaced"}, {"type": "Unheard"}])
    done = cli_on_database("bus", "publish", "--app", SHOP, "--file", file)
    assert done.code == 1
    assert "1 without a subscriber" in done.out
    assert len(open_rows(dsn)) == 1

"""The rules of the pipeline, checked against what a trial left."""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from bench.trading.evidence import Evidence

# The state machine of an attempt. ACKED is allowed after every open state (PREPARED, SENT, UNKNOWN), because the
# exchange has confirmed that it has the order.
_ALLOWED: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"PREPARED"}),
    "PREPARED": frozenset({"SENT", "ACKED"}),
    "SENT": frozenset({"ACKED", "REJECTED", "THROTTLED", "UNKNOWN"}),
    "UNKNOWN": frozenset({"ACKED", "REJECTED", "PREPARED"}),
}
# The events that an intent in each state has published.
_PUBLISHED: Mapping[str, Counter[str]] = {
    "OPEN": Counter(),
    "ACCEPTED": Counter(["OrderAccepted"]),
    "FILLED": Counter(["OrderAccepted", "OrderFilled"]),
    "REJECTED": Counter(["OrderRejected"]),
}


class Rule(StrEnum):
    """A way in which a rule of the pipeline can be broken."""

    ORDER_TWICE = "an intent has two orders"
    NOT_CONTINUED = "nothing will continue an open intent"
    RESENT_WITHOUT_LOOKUP = "sent again before it was looked up"
    UNKNOWN_NOT_SUSPENDED = "UNKNOWN in a market that is not suspended"
    SENT_WHILE_STOPPED = "sent into a stopped market"
    THROTTLED_WITHOUT_SUCCESSOR = "a throttled attempt has no successor"
    TRANSITION = "a transition that the state machine does not have"
    BOOK_DIFFERS = "the tables and the book of the exchange differ"
    EVENTS_DIFFER = "an intent does not have the events of its state, once each"
    PUSHED_TWICE = "a notification was sent twice"
    NOT_PUSHED = "a notification was not sent"
    DEAD = "an event is dead"


class Finding(NamedTuple):
    """One broken rule."""

    rule: Rule
    subject: str
    detail: str = ""


def judge(evidence: Evidence, *, at_rest: bool) -> list[Finding]:
    """Return every broken rule. If `at_rest`, also check the rules that hold only when nothing is left to do."""
    findings = [
        *_orders(evidence),
        *_resends(evidence),
        *_audit(evidence),
        *_intents(evidence),
        *_events(evidence),
        *_pushes(evidence),
        *(Finding(Rule.DEAD, row["event_type"], row["last_error_message"]) for row in evidence.dead),
    ]
    return [*findings, *_check_at_rest(evidence)] if at_rest else findings


def intent_of(identifier: str) -> str:
    """Return the intent of an identifier, which ends with the number of its attempt."""
    return identifier.rpartition("-")[0]


def _orders(evidence: Evidence) -> Iterator[Finding]:
    orders = Counter(intent_of(line["identifier"]) for line in evidence.book if line["what"] == "order")
    for intent, count in orders.items():
        if count > 1:
            yield Finding(Rule.ORDER_TWICE, intent, f"{count} orders")


def _resends(evidence: Evidence) -> Iterator[Finding]:
    """Find identifiers that were sent again without a lookup. Each lookup that finds no order allows one more call."""
    allowed: Counter[str] = Counter()
    for line in evidence.book:
        name = line.get("identifier", "")
        if line["what"] == "lookup" and not line["found"]:
            allowed[name] += 1
        elif line["what"] == "post":
            allowed[name] -= 1
            if allowed[name] < -1:
                yield Finding(Rule.RESENT_WITHOUT_LOOKUP, name)


def _audit(evidence: Evidence) -> Iterator[Finding]:
    stopped: set[str] = set()
    for row in evidence.audit:
        if row["thing"] == "market":
            (stopped.add if row["later"] == "stopped" else stopped.discard)(row["name"])
        elif row["earlier"] != row["later"]:
            if row["later"] not in _ALLOWED.get(row["earlier"], frozenset()):
                yield Finding(Rule.TRANSITION, row["name"], f"{row['earlier']} → {row['later']}")
            if row["later"] == "SENT" and stopped & {"*", row["market"]}:
                yield Finding(Rule.SENT_WHILE_STOPPED, row["name"], row["market"])


def _intents(evidence: Evidence) -> Iterator[Finding]:
    """Find open intents that nothing will continue, and throttled attempts without a successor.

    An open event, a planned lookup, or the restart of a stopped market continues an intent.
    """
    looked_up = {str(row["order_intent_id"]) for row in evidence.attempts if row["next_lookup_at"]}
    prepared = {str(row["order_intent_id"]) for row in evidence.attempts if row["state"] == "PREPARED"}
    newest = {str(row["order_intent_id"]): row for row in evidence.attempts}
    for row in evidence.intents:
        intent = str(row["id"])
        waits = intent in prepared and row["market"] in evidence.stopped_markets
        is_open = row["state"] not in ("FILLED", "REJECTED")
        if is_open and intent not in evidence.moving | looked_up and not waits:
            yield Finding(Rule.NOT_CONTINUED, intent, f"{row['state']} in {row['market']}")
        if is_open and intent in newest and newest[intent]["state"] == "THROTTLED":
            yield Finding(Rule.THROTTLED_WITHOUT_SUCCESSOR, newest[intent]["identifier"])


def _events(evidence: Evidence) -> Iterator[Finding]:
    """Find intents whose published events are not exactly the events of their state."""
    published: dict[str, Counter[str]] = {str(row["id"]): Counter() for row in evidence.intents}
    for event in evidence.pushed:
        if event["aggregate_id"] in published:
            published[event["aggregate_id"]][event["event_type"]] += 1
    for row in evidence.intents:
        if published[str(row["id"])] != _PUBLISHED[row["state"]]:
            yield Finding(Rule.EVENTS_DIFFER, str(row["id"]), f"{row['state']}: {dict(published[str(row['id'])])}")


def _pushes(evidence: Evidence) -> Iterator[Finding]:
    for event in evidence.pushed:
        count = evidence.pushes[event["event_id"]]
        if count > 1:
            yield Finding(Rule.PUSHED_TWICE, event["event_id"], f"{event['event_type']}: {count} times")
        if not count and event["status"] == "DONE":
            yield Finding(Rule.NOT_PUSHED, event["event_id"], event["event_type"])


def _check_at_rest(evidence: Evidence) -> Iterator[Finding]:
    """Find unknown attempts in markets that trade, and differences between the tables and the book."""
    ended = {line["identifier"]: line["what"] for line in evidence.book if line["what"] in ("order", "rejected")}
    suspended = {row["market"] for row in evidence.markets if row["suspended_since"]}
    expected = {"ACKED": "order", "REJECTED": "rejected"}
    for row in evidence.attempts:
        name, state = row["identifier"], row["state"]
        if state == "UNKNOWN" and row["market"] not in suspended:
            yield Finding(Rule.UNKNOWN_NOT_SUSPENDED, name, row["market"])
        if state in ("SENT", "UNKNOWN") and row["market"] in suspended:
            continue
        if ended.get(name) != expected.get(state):
            yield Finding(Rule.BOOK_DIFFERS, name, f"{state}, the exchange has {ended.get(name)}")
    known = {row["identifier"] for row in evidence.attempts}
    for name in ended.keys() - known:
        yield Finding(Rule.BOOK_DIFFERS, name, "the tables do not have it")

"""Decide which Generals get an event, with a reason for every subscription. This module does no I/O."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from kingdom.court.documents import ExternalEvent, Priority
from kingdom.court.package import FIELD_IN_PATTERN, FieldPattern, Package, Subscription

_SHOWN_MAX = 80
_MISSING = object()


class ConsideredRule(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, whether it was chosen, and why. `rule` is its name, such as gen-pr#2."""

    rule: str
    general: str
    chosen: bool
    reason: str


class RouteChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One General that gets the event, and by which rule. A newer event with the same `key` replaces this event."""

    general: str
    rule: str
    priority: Priority
    key: str = ""
    debounce_seconds: int = 0


class RoutingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Which Generals get an event, in order, and why other Generals do not get it."""

    choices: tuple[RouteChoice, ...] = ()
    considered: tuple[ConsideredRule, ...] = ()

    @property
    def generals(self) -> tuple[str, ...]:
        """Return the names of the chosen Generals."""
        return tuple(choice.general for choice in self.choices)


def route_event(event: ExternalEvent, packages: Iterable[Package]) -> RoutingDecision:
    """Choose the first General with a matching subscription, and every General that matches with `also`."""
    document = msgspec.to_builtins(event)
    choices: dict[str, RouteChoice] = {}
    considered: list[ConsideredRule] = []
    winner = ""
    for package, rule, subscription in _subscriptions(packages):
        general = package.name
        mismatch = _mismatch(document, subscription)
        chosen = False
        if mismatch:
            reason = mismatch
        elif winner and not subscription.also:
            reason = f"matches, but {winner} comes first"
        else:
            winner = winner if subscription.also else rule
            chosen = general not in choices
            reason = (
                ("matches, also" if subscription.also else "matches")
                if chosen
                else "matches, but its General already gets it"
            )
        if chosen:
            choices[general] = _choice(document, general, rule, subscription)
        considered.append(ConsideredRule(rule=rule, general=general, chosen=chosen, reason=reason))
    return RoutingDecision(choices=tuple(choices.values()), considered=tuple(considered))


def why_unrouted(event: ExternalEvent, packages: Iterable[Package]) -> str:
    """Return why no General gets an event."""
    is_subscribed = any(fnmatchcase(event.type, each.type) for _, _, each in _subscriptions(packages))
    return "no rule of a General matches it" if is_subscribed else "no General subscribes to it"


def value_at(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a document, or a marker that equals nothing."""
    found: Any = document
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return _MISSING
        found = found[step]
    return found


def _subscriptions(packages: Iterable[Package]) -> Iterator[tuple[Package, str, Subscription]]:
    for package in sorted(packages, key=lambda package: (package.general.order, package.name)):
        for position, subscription in enumerate(package.general.subscribes, start=1):
            yield package, f"{package.name}#{position}", subscription


def _mismatch(document: Mapping[str, Any], subscription: Subscription) -> str:
    """Return which part of a subscription does not match, or ""."""
    if not fnmatchcase(document["type"], subscription.type):
        return f"type is {_show(document['type'])}, wanted {subscription.type!r}"
    repo = document["repo"]
    # GitHub names are case-insensitive.
    fits = repo is not None and any(fnmatchcase(repo.lower(), glob.lower()) for glob in subscription.repos)
    if subscription.repos and not fits:
        return f"repo is {_show(repo)}, wanted {_show_wanted(list(subscription.repos))}"
    for path, wanted in subscription.where.items():
        found = value_at(document, path)
        if not _fits(found, wanted):
            return f"{path} is {_show(found)}, wanted {_show_wanted(wanted)}"
    return ""


def _fits(found: Any, wanted: FieldPattern) -> bool:
    """Return whether a value, or one element of a list, matches a pattern."""
    if isinstance(found, list):
        return any(_fits(each, wanted) for each in found)
    return any(_equals(found, each) for each in (wanted if isinstance(wanted, list) else [wanted]))


def _equals(found: object, wanted: object) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and fnmatchcase(found, wanted)
    # In Python, True equals 1.
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _choice(document: Mapping[str, Any], general: str, rule: str, subscription: Subscription) -> RouteChoice:
    return RouteChoice(
        general=general,
        rule=rule,
        priority=subscription.priority or Priority(document["priority"]),
        key=_key(document, subscription.supersedes),
        debounce_seconds=subscription.debounce_seconds,
    )


def _key(document: Mapping[str, Any], pattern: str) -> str:
    """Fill an event's fields into a key pattern. Return "" if one is missing, since a partial key fits other events."""
    values = {path: value_at(document, path) for path in FIELD_IN_PATTERN.findall(pattern)}
    if any(not isinstance(value, str | int) for value in values.values()):
        return ""
    # All fields are replaced in one pass, so that a value is not treated as a pattern.
    return FIELD_IN_PATTERN.sub(lambda match: str(values[match[1]]), pattern)


def _show_wanted(wanted: FieldPattern | list[str]) -> str:
    if not isinstance(wanted, list):
        return repr(wanted)
    return repr(wanted[0]) if len(wanted) == 1 else "one of " + ", ".join(map(repr, wanted))


def _show(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"

"""Check that the runbooks cover every alarm, error code and check of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kingdom.bus.delivery
import kingdom.bus.effects.effect
import kingdom.bus.effects.perform
import kingdom.bus.effects.target_limiter
import kingdom.court.chamberlain.anomalies
import kingdom.court.status
from kingdom import errors
from kingdom.chronicle.events import InternalEvent
from kingdom.doctor.checks import all_checks
from tests.documentation.surroundings import ROOT

PAGE = ROOT / "docs" / "operations" / "runbooks.md"
CHAMBERLAIN = "chamberlain"
ANYTHING = "…"


def text() -> str:
    return PAGE.read_text()


def headings() -> list[str]:
    return [line.lstrip("# ") for line in text().splitlines() if line.startswith("### ")]


def rows_of(section: str) -> str:
    return text().split(f"\n## {section}\n")[1].split("\n## ")[0]


def tree_of(module: object) -> ast.Module:
    file = getattr(module, "__file__", None)
    assert file is not None
    return ast.parse(Path(file).read_text())


def written(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """Yield each possible text of an expression, with `…` for parts that are known only at run time."""
    match node:
        case ast.Constant(value=str(said)):
            yield said
        case ast.Name(id=name) if name in constants:
            yield constants[name]
        case ast.JoinedStr(values=parts):
            yield "".join(next(written(part, constants)) for part in parts)
        case ast.FormattedValue(value=ast.Call(args=[_, ast.Constant(value=str(noun))])):
            yield f"{ANYTHING} {noun}s"
        case ast.IfExp(body=body, orelse=other):
            yield from written(body, constants)
            yield from written(other, constants)
        case _:
            yield ANYTHING


def texts_named(module: object, name: str) -> set[str]:
    """Return the texts that a module assigns to a variable or argument of this name."""
    tree = tree_of(module)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=arg, value=value) if arg == name:
                found.update(written(value, constants))
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                found.update(written(value, constants))
    return {text for text in found if re.search(r"\w", text)}


def codes_of_death() -> set[str]:
    """Return the codes of dead letters: those of the bus, and those of permanent errors."""
    found = {kind.code for kind in (errors.Permanent, errors.MalformedEvent, errors.IllegalTransition)}
    for module in (kingdom.bus.delivery, kingdom.bus.effects.effect, kingdom.bus.effects.perform):
        for node in ast.walk(tree_of(module)):
            match node:
                case ast.Call(func=ast.Name(id="Dead"), args=[_, ast.Constant(value=str(code))]):
                    found.add(code)
    return found


def test_every_anomaly_has_a_section() -> None:
    keys = {key.split(":")[0] for key in texts_named(kingdom.court.chamberlain.anomalies, "key")}
    assert {"failures", "timeouts", "undispatched"} <= keys
    missing = {key for key in keys if not any(heading.startswith(f"`{key}`") for heading in headings())}
    assert missing == set()


def test_everything_that_the_status_shows_has_a_section() -> None:
    troubles = texts_named(kingdom.court.status, "what")
    assert "nothing runs" in troubles
    missing = {text for text in troubles if not any(text in heading for heading in headings())}
    assert missing == set()


def test_everything_that_the_chamberlain_logs_is_explained() -> None:
    types = {kind.type for kind in InternalEvent.__subclasses__() if kind.actor == CHAMBERLAIN}
    assert types
    rows = rows_of("Entries of the log")
    assert {name for name in types if f"`{name}`" not in rows} == set()


def test_every_cause_of_a_dead_letter_is_explained() -> None:
    codes, rows = codes_of_death(), rows_of("Dead letters")
    assert "quarantined" in codes
    assert {code for code in codes if f"`{code}`" not in rows} == set()


def test_the_reason_of_a_closed_limiter_is_explained() -> None:
    rows = rows_of("Things that wait")
    reasons = [
        node for node in ast.walk(tree_of(kingdom.bus.effects.target_limiter)) if isinstance(node, ast.JoinedStr)
    ]
    text = {next(written(reason, {})) for reason in reasons}
    assert text
    assert {words for words in text if words not in rows} == set()


def test_every_check_of_the_doctor_has_a_row_with_the_first_thing_to_do() -> None:
    rows = rows_of("What `kingdom doctor` finds")
    assert {check.name for check in all_checks() if f"`{check.name}`" not in rows} == set()

import msgspec
import pytest

from kingdom.errors import Misconfigured
from kingdom.yaml_file import explain_in_plain_words, read_yaml


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("Expected `int`, got `str`", "must be a whole number, not text"),
        ("Expected `float`, got `bool`", "must be a number, not true or false"),
        ("Expected `bool`, got `int`", "must be true or false, not a whole number"),
        (
            "Expected `str`, got `bool`",
            (
                "must be text, not true or false: put it in quotes, because YAML reads on, off, yes and no as true or"
                " false"
            ),
        ),
        ("Expected `str | array`, got `object`", "must be text or a list, not a block of fields"),
        ("Expected `int | null`, got `float`", "must be a whole number, not a decimal number"),
        ("Expected `object`, got `null`", "must be a block of fields, but it is empty"),
        ("Expected `str`, got `date`", "must be text, not a date"),
        ("Expected `int` >= 1", "must be a whole number of at least 1"),
        ("Expected `float` > 0.0", "must be a number of more than 0"),
        ("Expected `int | null` <= 4", "must be a whole number of at most 4"),
        ("Expected `str` of length >= 1", "must be text with a length of at least 1"),
        ("Expected `array` of length <= 64", "must be a list with a length of at most 64"),
        ("Expected `str` matching regex '^a$'", "must be text that matches the pattern '^a$'"),
        ("Invalid enum value 'often'", "'often' is not one of the allowed values"),
        ("Object missing required field `name`", "the field name is missing"),
        ("it has two ends: keep one", "it has two ends: keep one"),
    ],
)
def test_an_invalid_value_is_described_in_plain_words(message: str, plain: str) -> None:
    assert explain_in_plain_words(message) == plain


def test_a_wrong_value_is_named_by_its_line_and_its_field() -> None:
    kind = msgspec.defstruct("Rule", [("timeout_seconds", int)])
    with pytest.raises(Misconfigured) as caught:
        read_yaml("# How long\ntimeout_seconds: soon\n", "general.yaml", kind, {})
    assert str(caught.value) == "general.yaml:2: timeout_seconds: must be a whole number, not text"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("2026-02-30", ":2:4"),
        ("2026-02-03T25:00:00Z", ":2:4"),
        ("!!bool often", ":2:4"),
        ("!!int often", ":2:4"),
        ("!!int ''", ":2:4"),
        ("!!timestamp soon", ":2:4"),
        ("9" * 5000, ":2:4"),
        (f"1{':20' * 300}.5", ":2:4"),
        ("[" * 1500 + "]" * 1500, ""),
    ],
)
def test_a_value_that_yaml_cannot_construct_is_reported_with_its_place(value: str, place: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read_yaml(f"# Any\na: {value}\n", "general.yaml", msgspec.defstruct("Any", ["a"]), {})
    assert str(caught.value).startswith(f"general.yaml{place}: this is not valid YAML: ")

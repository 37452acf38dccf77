import pytest

from kingdom.text import format_age, sentence, with_reason


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("it ended", "it ended."),
        ("It ended.\n", "It ended."),
        ("completed, Hello to you too!", "completed, Hello to you too!"),
        ("Shall it go on?", "Shall it go on?"),
        ('he said "Stop."', 'he said "Stop."'),
        ("cut off…", "cut off…"),
        ("see `a.py`", "see `a.py`."),
        ("fails (twice)", "fails (twice)."),
    ],
)
def test_a_sentence_ends_once(words: str, expected: str) -> None:
    assert sentence(words) == expected


def test_a_colon_occurs_only_before_a_reason() -> None:
    assert with_reason("`make` failed (exit code 1)", " no rule\n") == "`make` failed (exit code 1): no rule"
    assert with_reason("`false` failed (exit code 1)", "\n") == "`false` failed (exit code 1)"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1, "0 s"), (59, "59 s"), (2028, "34 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_an_age_has_one_whole_unit(seconds: float, expected: str) -> None:
    assert format_age(seconds) == expected

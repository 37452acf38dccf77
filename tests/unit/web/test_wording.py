"""Texts of ours in pages: commands look like code, and nothing that a stranger wrote becomes markup."""

import pytest

from kingdom.web.pages.wording import coded, unbroken


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("`kingdom up` starts it", "<code>kingdom up</code> starts it"),
        ("a `<b>` and a & b", "a <code>&lt;b&gt;</code> and a &amp; b"),
        ("it's a lone ` mark", "it&#39;s a lone ` mark"),
        ("`\u202egnp.exe`", "<code>\\u202egnp.exe</code>"),
    ],
)
def test_text_between_backquotes_looks_like_code(text: str, html: str) -> None:
    assert str(coded(text)) == html


def test_the_sign_for_percent_stays_with_its_number() -> None:
    assert str(unbroken("processors at 71 % of <all>")) == "processors at 71&nbsp;% of &lt;all&gt;"

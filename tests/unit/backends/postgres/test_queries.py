import re

import pytest

from kingdom.backends.postgres.queries import in_schema, load_queries
from kingdom.errors import Misconfigured


def test_every_statement_names_only_the_given_schema() -> None:
    own, other = load_queries("kingdom"), load_queries("elsewhere")
    assert own.keys() == other.keys()
    assert {"claim", "claim_ordered", "publish", "done", "reap", "renew"} <= own.keys()
    for name, statement in other.items():
        assert "kingdom." not in statement, name


def test_statements_have_no_comments_and_no_semicolons() -> None:
    for name, statement in load_queries("kingdom").items():
        assert "--" not in statement, name
        assert ";" not in statement, name


def test_fragments_are_inserted() -> None:
    queries = load_queries("kingdom")
    assert not [name for name, statement in queries.items() if re.search(r"\{\w", statement)]
    assert queries["done"].count("event_id_given") == queries["discard"].count("event_id_given") == 2


@pytest.mark.parametrize("name", ["", "A", "1a", "a b", 'a"b', "a;b", "a.b", "ä", "a" * 52, "a\n"])
def test_a_schema_name_that_would_need_quotes_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured):
        in_schema("SELECT 1", name)

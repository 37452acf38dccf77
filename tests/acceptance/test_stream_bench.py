"""The stream bench checks that clients receive the whole log, and fails if one of them does not."""

import json

import pytest

from bench.stream.variants import VARIANTS
from tests.benches import bench

SHORT = ("--entries", "600", "--kills", "2", "--cuts", "4")


@pytest.mark.benches
@pytest.mark.parametrize("backend", ["files", "postgres"])
def test_clients_receive_the_whole_log_although_the_server_is_killed_and_connections_are_cut(backend: str) -> None:
    done = bench("stream", "--backend", backend, *SHORT, "--json", "-", ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])[backend]
    assert figures["entries"] == 600
    assert figures["held"] == [600, 600]
    assert (figures["kills"], figures["complaints"]) == (2, [])


@pytest.mark.variants
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_stream_is_noticed(variant: str) -> None:
    done = bench("stream", "--backend", "postgres", "--variant", variant, *SHORT, "--json", "-", ends_with=1)
    words = {"no-id": "double", "no-resume": "gap", "no-horizon": "gap", "cursor-after-data": "page"}[variant]
    assert words in done.stderr

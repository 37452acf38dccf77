"""Which addresses a client of an outside system calls with its authorization."""

import pytest

from bench.servers import free_port
from kingdom.court.petitions.http_api import HttpApi, NotAuthorized, Unreachable


@pytest.mark.parametrize(
    "address",
    [
        "https://elsewhere.example/page",
        "https://api.example.elsewhere.example/page",
        "https://api.example@elsewhere.example/page",
        "http://api.example/page",
        "https://api.example:8443/page",
        "page",
    ],
)
async def test_another_server_gets_no_request(address: str) -> None:
    api = HttpApi("https://api.example/v3", {"Authorization": "Bearer secret"})
    with pytest.raises(NotAuthorized, match="is not on the server of https://api"):
        await api.ask(address)


async def test_a_complete_address_of_the_same_server_is_called() -> None:
    # Nothing listens on the port, so the attempt to connect fails.
    server = f"http://127.0.0.1:{free_port()}"
    api = HttpApi(f"{server}/v3", {})
    for path in (f"{server}/v3/page?after=1", f"{server}/graphql", "/page"):
        with pytest.raises(Unreachable):
            await api.ask(path)
    await api.close()

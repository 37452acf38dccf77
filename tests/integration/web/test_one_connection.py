"""A page needs one connection to the database at a time, so pages never wait for each other's second one."""

from pathlib import Path

from kingdom.access.rights import Right
from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Bus, Operations
from kingdom.bus.throughput import THROUGHPUT
from kingdom.court import streams
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.web.pages.table import PAGES
from kingdom.web.routes import API_ROUTES
from kingdom.web.stream import EVENT_STREAM
from tests.contract.backends import BACKENDS
from tests.integration.web.scene import fill_realm
from tests.integration.web.site import serving

READ = [
    *PAGES,
    *(each for each in API_ROUTES if each.method == "GET" and each.right is Right.LOOK and each.media != EVENT_STREAM),
]
RUN = "wf-task-20261118-001"


async def test_every_page_and_every_answer_of_the_api_is_served_from_a_pool_of_one_connection(
    dsn: str, tmp_path: Path
) -> None:
    app = declare_application(Realm())
    async with PostgresBus(dsn, app.topology, (THROUGHPUT, *app.kinds), connections=1) as small:

        def wrap(_bus: Bus, _operations: Operations) -> tuple[Bus, Operations]:
            return small, PostgresOperations(small)

        async with serving(BACKENDS["postgres"](dsn), tmp_path, wrap=wrap) as site:
            await fill_realm(site.bus)
            letter = streams.event_received("evt-gone")
            await site.bus.publish(letter)
            await site.operations.cancel(letter.event_id, streams.EVENT_STREAM.name, actor="tester")
            cookie = await site.signs_in("anna")
            for route in READ:
                path = route.path.replace("/dead-letters/{id}", f"/dead-letters/{letter.event_id}")
                reply = await site.send("GET", path.replace("{id}", RUN), Cookie=cookie)
                # Some routes are not about a run.
                assert reply.status == 200 or (reply.status in (400, 404) and "{" in path), (path, reply.text)

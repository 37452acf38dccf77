import asyncio
import threading

import pytest
from psycopg.conninfo import conninfo_to_dict

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Topology

DSN = "postgresql://nowhere.invalid/kingdom"


@pytest.mark.parametrize("options", [{}, {"through_pgbouncer": True, "listen_dsn": DSN}])
def test_the_connection_that_listens_has_the_timeouts_of_all_others(options: dict[str, object]) -> None:
    bus = PostgresBus(DSN, Topology([]), **options)  # type: ignore[arg-type]
    assert conninfo_to_dict(bus._wakeups._listen_dsn or "") == conninfo_to_dict(bus.dsn)
    assert "tcp_user_timeout" in conninfo_to_dict(bus.dsn)


async def test_closing_waits_for_a_renewal_without_blocking_the_event_loop() -> None:
    bus, released_by = PostgresBus(DSN, Topology([])), list[str]()

    def release(who: str) -> None:
        if not released_by:
            released_by.append(who)
            bus._renewals._lock.release()

    bus._renewals._lock.acquire()
    anyway = threading.Timer(5, release, ["a thread"])
    anyway.start()
    asyncio.get_running_loop().call_later(0.05, release, "the loop")
    await bus.close()
    anyway.cancel()
    assert released_by == ["the loop"]

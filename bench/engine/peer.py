"""Give dbos the same load as `bench.engine.kingdom` gives the engine: as many workflows with as many steps, at once.

`python -m bench.engine.peer DSN RUNS` runs them in one process and prints the time that this took.
"""

import asyncio
import os
import sys

from dbos import DBOS
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from bench.engine.kingdom import CONNECTIONS, STEPS_PER_RUN
from bench.engine.process_times import ProcessTimes

# More threads make dbos slower, because they wait for each other.
_THREADS = 16


@DBOS.step()
async def answer(number: int) -> int:
    """Return at once."""
    return number


@DBOS.workflow()
async def take_steps() -> int:
    """Take as many durable steps as one run has."""
    return sum([await answer(number) for number in range(STEPS_PER_RUN)])


async def measure(runs: int) -> ProcessTimes:
    """Return the elapsed and the processor time from the first start to the last completion."""

    async def run_one() -> None:
        await (await DBOS.start_workflow_async(take_steps)).get_result()

    began = ProcessTimes.now()
    await asyncio.gather(*(run_one() for _ in range(runs)))
    return ProcessTimes.now() - began


def main(dsn: str, runs: int) -> None:
    """Run the workflows on the database of `dsn`, and print the time."""
    server = conninfo_to_dict(dsn)
    url = URL.create(
        "postgresql",
        username=str(server["user"]),
        host=str(server["host"]),
        port=int(server["port"] or 5432),
        database=str(server["dbname"]),
    )
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url.render_as_string(hide_password=False),
            "sys_db_pool_size": CONNECTIONS,
            "max_executor_threads": _THREADS,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    print(asyncio.run(measure(runs)).to_json(), flush=True)
    # The threads of dbos end slowly, and there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

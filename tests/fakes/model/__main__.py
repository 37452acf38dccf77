"""Run the stub by hand: `python -m tests.fakes.model --port 8099`."""

import argparse
import asyncio
from pathlib import Path

from tests.fakes.model.stub import ModelStub


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--unix", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    async with ModelStub(port=options.port, unix=options.unix, delay=options.delay) as stub:
        print(stub.url, flush=True)  # noqa: T201 - the caller waits for its address
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

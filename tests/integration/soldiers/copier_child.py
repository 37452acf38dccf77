"""A transcript copier as its own process, to be killed by its test."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from kingdom.bootstrap import open_bus, run_texts_of
from kingdom.bus import Topology
from kingdom.soldiers.redaction import DEFAULT_REDACTION
from kingdom.soldiers.transcripts import copied_text, copier
from kingdom.soldiers.workplace.host_folders import HostFolders
from tests.integration.processes import say


async def run(options: dict[str, Any]) -> None:
    # With many small pieces, a kill is likely to interrupt the copier in the middle of its work.
    copied_text.PIECE_BYTES, copier._BATCH_BYTES = 50, 400
    folders = HostFolders(Path(options["directory"]))
    async with open_bus(options["place"], Topology(())) as bus:
        texts = run_texts_of(bus)
        assert texts is not None
        say("ready")
        await copier.TranscriptCopier(texts, folders, DEFAULT_REDACTION, every=0.001).run()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[-1])))

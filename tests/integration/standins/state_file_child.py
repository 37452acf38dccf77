"""Change a state file until this process is killed. With the argument `inside`, wait in the middle of a change."""

import json
import sys
import time
from pathlib import Path

from kingdom.standins.state_file import StateFile


def main(path: str, where: str) -> None:
    state_file = StateFile(Path(path), {"entries": []})
    while True:
        with state_file.change("add") as state:
            state["entries"].append("x" * 1000)
            if where == "inside":
                _say(len(state["entries"]))
                time.sleep(3600)
        _say(len(state_file.state["entries"]))


def _say(number: int) -> None:
    sys.stdout.write(json.dumps(number) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

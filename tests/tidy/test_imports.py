import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BAD = {
    "opens a socket": "import socket\nlistener = socket.socket()\n",
    "starts a process": "import subprocess\nsubprocess.run(['true'])\n",
    "starts a thread": "import threading\nthread = threading.Thread(target=print)\nthread.start()\n",
    "for writing": "from pathlib import Path\nPath(__file__).with_suffix('.log').write_text('here')\n",
    "changes files": "from pathlib import Path\nPath(__file__).with_suffix('').mkdir()\n",
    "reads the environment (HOME)": "import os\nhome = os.environ.get('HOME')\n",
    "reads the environment (PATH)": "import os\npath = os.getenv('PATH')\n",
    "reads the environment (all of it)": "import os\nwhole = dict(os.environ)\n",
    "cannot be imported: ImportError": "raise ImportError('not today')\n",
    "ends the process": "import os\nos._exit(0)\n",
}
DEAR = {"aiohttp", "kingdom.soldiers.host.host", "prometheus_client", "psutil", "psycopg", "textual", "watchfiles"}
# The expensive modules that each import adds to those of the imports above it.
LOADED: dict[str, set[str]] = {
    "kingdom.cli.court.ps": set(),
    "kingdom.cli.court.status": set(),
    "kingdom.cli.machine.host": set(),
    "kingdom.cli.machine.role": {"prometheus_client"},
    "kingdom.cli.up.commands": set(),
    "kingdom.roles.king": set(),
    "kingdom.roles.general": set(),
    "kingdom.roles.envoy": set(),
    "kingdom.roles.chamberlain": {"psutil"},
    "kingdom.roles.sentinel": {"aiohttp"},
    "kingdom.roles.soldiers": {"kingdom.soldiers.host.host"},
}


def probe(source: Path, package: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tidy.import_probe", str(source), package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_importing_a_module_has_no_side_effects() -> None:
    found = probe(ROOT / "src", "kingdom")
    assert "kingdom" in found
    assert {module: effects for module, effects in found.items() if effects} == {}


def test_commands_and_roles_load_only_the_expensive_libraries_that_they_use() -> None:
    program = (
        "import importlib, json, sys\n"
        "print(json.dumps([importlib.import_module(name) and list(sys.modules) for name in sys.argv[1:]]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *LOADED], capture_output=True, text=True, check=True)
    seen = [set(), *(DEAR & set(modules) for modules in json.loads(done.stdout))]
    assert {name: now - before for name, (before, now) in zip(LOADED, pairwise(seen), strict=True)} == LOADED


@pytest.mark.parametrize("complaint", BAD)
def test_the_probe_reports_each_side_effect_of_an_import(complaint: str, tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bad.py").write_text(BAD[complaint])
    (package / "good.py").write_text("import os\n\n\ndef home():\n    return os.environ['HOME']\n")
    found = probe(tmp_path, "sample")
    assert any(complaint in effect for effect in found["sample.bad"])
    assert found["sample"] == []
    assert found["sample.good"] == []


def test_the_probe_finds_a_module_that_can_be_imported_only_after_another_one(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "egg.py").write_text("from sample.hen import HEN\nEGG = HEN\n")
    (package / "hen.py").write_text("HEN = 1\nfrom sample.egg import EGG\n")
    found = probe(tmp_path, "sample")
    assert "cannot be imported" in found["sample.egg"][0] or "cannot be imported" in found["sample.hen"][0]

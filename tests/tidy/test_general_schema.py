"""The published schema of general.yaml is the one that the code generates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "general.schema.json"


def test_the_schema_of_general_files_is_the_generated_one() -> None:
    command = [sys.executable, "-m", "kingdom", "general", "schema"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    hint = "run: .venv/bin/kingdom general schema > docs/general.schema.json"
    assert SCHEMA.read_text(encoding="utf-8") == printed, hint

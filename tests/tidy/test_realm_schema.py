"""The published schema of kingdom.yaml is the one that the code generates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "kingdom.schema.json"


def test_the_schema_of_the_file_of_settings_is_the_generated_one() -> None:
    command = [sys.executable, "-m", "kingdom", "config", "schema"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    hint = "run: .venv/bin/kingdom config schema > docs/kingdom.schema.json"
    assert SCHEMA.read_text(encoding="utf-8") == printed, hint

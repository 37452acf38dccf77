"""Check that the page of workflow events is the generated one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "workflow-events.md"


def test_the_page_of_workflow_events_is_the_generated_one() -> None:
    command = [sys.executable, "-m", "kingdom.workflow.model.messages.catalog"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    hint = "run: .venv/bin/python -m kingdom.workflow.model.messages.catalog > docs/workflow-events.md"
    assert PAGE.read_text(encoding="utf-8") == printed, hint

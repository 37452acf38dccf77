"""Prompts that carry a script."""

import json
from typing import Any


def scripted(*steps: dict[str, Any], text: str = "Do as the script says.") -> str:
    """Return a prompt whose script has these steps."""
    lines = "\n".join(map(json.dumps, steps))
    return f"{text}\n\n```script\n{lines}\n```\n"

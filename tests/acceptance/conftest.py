from pathlib import Path

import pytest

from tests.acceptance.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, dsn: str) -> Terminal:
    return Terminal(tmp_path, dsn)

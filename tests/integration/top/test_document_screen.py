"""A screen that follows a growing document."""

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text
from textual.app import App
from textual.widgets import RichLog

from kingdom.top.document_screen import DocumentScreen
from tests.patience import PATIENCE_SECONDS


async def test_the_screen_follows_new_lines_except_while_the_user_has_scrolled_up() -> None:
    lines = [[Text(f"line {number}") for number in range(50)]]

    async def read() -> Sequence[RenderableType]:
        return lines.pop() if lines else []

    app: App[None] = App()
    async with app.run_test(size=(60, 20)) as pilot:
        await app.push_screen(DocumentScreen("what grows", read, every=None, grows=True))
        await pilot.pause()
        log = app.screen.query_one(RichLog)

        def to_the_end() -> float:
            return log.max_scroll_y - log.scroll_offset.y

        async def comes(word: str, away: float) -> None:
            lines.append([Text(word)])
            await pilot.press("u")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while log.lines[-1].text.strip() != word or to_the_end() != away:
                assert time.monotonic() < deadline, (log.lines[-1].text, to_the_end())
                await pilot.pause(0.01)

        await comes("first", 0)
        await pilot.press("pageup")
        away = to_the_end()
        assert away > 0
        await comes("second", away + 1)
        await pilot.press("end")
        await comes("third", 0)
        await pilot.resize_terminal(60, 30)
        await comes("fourth", 0)

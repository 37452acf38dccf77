"""Play `kingdom demo` and draw the terminal as an animated SVG: `python -m bench.demo_recording FILE`."""

import argparse
import asyncio
import io
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from kingdom.cli.demo.view import end_view, question_view, screen_view
from kingdom.court.questions import HumanQuestion
from kingdom.demo.demo_court import open_demo_court
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine
from kingdom.demo.scenario import Scenario
from kingdom.demo.store_watcher import DemoState
from kingdom.log_output import configure_logs

_WIDTH, _HEIGHT = 112, 30
_FRAME_SECONDS = 5
_ANSWER, _ANSWER_SECONDS = "No, keep the cents.", 45.0
# No web fonts, because pages are also read offline.
_FRAME = """\
<svg class="frame" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>"""


class Recorder(DemoDisplay):
    """Keeps one picture of the screen for the end of each part and for the question."""

    def __init__(self) -> None:
        self.views: list[RenderableType] = []
        self._part = ("", "")
        self._lines: list[NarrationLine] = []
        self._state = DemoState()

    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """See the port."""
        if self._lines:
            self.keep()
        self._part = (f"{number}/{total}  {title}", words)

    def tell(self, line: NarrationLine) -> None:
        """See the port."""
        self._lines.append(line)

    def show(self, state: DemoState) -> None:
        """See the port."""
        self._state = state

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """See the port."""
        question = question_view(ask, default, _ANSWER_SECONDS)
        self.views.append(Group(question, Text(f"Your answer: {_ANSWER}")))
        return _ANSWER

    def keep(self) -> None:
        """Keep a picture of the screen."""
        title, words = self._part
        self.views.append(screen_view(title, words, list(self._lines), self._state, height=_HEIGHT))


async def record() -> list[RenderableType]:
    """Play the demo and return the screens that a person would see."""
    configure_logs(json=True, level=logging.ERROR)
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="kingdom-demo-") as directory:
        async with open_demo_court(Path(directory)) as court:
            report = await Scenario(court, recorder, person="anna").run()
        assert report.ok, report.findings
    recorder.keep()
    return [*recorder.views, end_view(report, None)]


def animated_svg(views: Sequence[RenderableType]) -> str:
    """Return an SVG that shows the views in a loop. Without animation it shows the last view."""
    frames = [_frame_svg(view, f"frame{number}") for number, view in enumerate(views)]
    whole = len(frames) * _FRAME_SECONDS
    # With negative delays all animations run from the start, each at its own point of the loop.
    delays = [
        f".frame:nth-of-type({number + 1}) {{ animation-delay: {number * _FRAME_SECONDS - whole}s; }}"
        for number in range(len(frames))
    ]
    head = frames[0].partition("\n")[0].partition('class="frame" ')[2]
    shown = 100 / len(frames)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {head}
<style>
.frame {{ visibility: hidden; animation: show {whole}s step-end infinite; }}
.frame:last-of-type {{ visibility: visible; }}
@keyframes show {{ 0% {{ visibility: visible; }} {shown:.4f}% {{ visibility: hidden; }} }}
@media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none; }} }}
{chr(10).join(delays)}
</style>
{chr(10).join(frames)}
</svg>
"""


def _frame_svg(view: RenderableType, name: str) -> str:
    console = Console(
        record=True, width=_WIDTH, height=_HEIGHT, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(view)
    # Add empty lines, so that every frame is as high as the terminal.
    console.print("\n" * max(_HEIGHT - len(console.render_lines(view)), 0), end="")
    return console.export_svg(title="kingdom demo", code_format=_FRAME, unique_id=name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the file for the picture")
    file: Path = parser.parse_args().file
    file.write_text(animated_svg(asyncio.run(record())), encoding="utf-8")

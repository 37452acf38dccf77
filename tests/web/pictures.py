"""Take pictures of every page for a review of the design: `python -m tests.web.pictures FOLDER [PAGE or SCENE ...]`.

With `--store DIRECTORY`, the pages of a store, such as that of `kingdom demo --keep`, are drawn, with its newest run.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import Browser

from kingdom.actions.listings import newest_runs
from kingdom.web.pages.run import TABS
from tests.contract.backends import BACKENDS
from tests.integration.web.court_scene import ASSIGNED, GENERAL, GIVEN, UNROUTED, fill_court, install_generals
from tests.integration.web.scene import TITLE, fill_realm
from tests.integration.web.site import Site, serving
from tests.web.browser import DESK, PHONE, Scheme, signed_in
from tests.web.browser import chromium as start_chromium

LONG = "Rewrite the whole pricing module so that every price in every view carries its currency, " * 4
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script> \u202egnp.exe {{ 7*7 }} ${alert(3)}"
PAGES = {
    "overview": "/",
    "inbox": "/inbox",
    "runs": "/runs",
    "followups": "/followups",
    "run": "/runs/wf-task-20261118-001",
    "run-outside": "/runs/wf-task-20261118-002?tab=outside",
    "run-failed": "/runs/wf-task-20261118-005?tab=story",
    "events": "/events",
    "event": f"/events/{GIVEN}",
    "event-unrouted": f"/events/{UNROUTED}",
    "assignments": "/assignments",
    "assignment": f"/assignments/{ASSIGNED}",
    "bus": "/bus",
    "dead-letter": "/bus/dead-letters/{dead}",
    "generals": "/generals",
    "general": f"/generals/{GENERAL}",
    "costs": "/costs",
    "hosts": "/hosts",
}
SCENES = {"plain": TITLE, "long": LONG, "hostile": HOSTILE, "empty": ""}
LOOKS: Sequence[tuple[tuple[int, int], Scheme]] = ((DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark"))


async def draw(site: Site, browser: Browser, folder: Path, scene: str, pages: dict[str, str]) -> None:
    """Save a picture of each page on a desktop and a phone, light and dark."""
    for size, scheme in LOOKS:
        async with signed_in(browser, site, size=size, scheme=scheme) as context:
            page = await context.new_page()
            for name, path in pages.items():
                await page.goto(f"{site.url}{path}")
                await page.wait_for_load_state("load")
                await page.wait_for_timeout(1500)
                file = folder / f"{name}-{scene}-{size[0]}-{scheme}.png"
                await page.screenshot(path=file, full_page=size == DESK)


async def main(folder: Path, names: Sequence[str]) -> None:
    chosen = {name: path for name, path in PAGES.items() if not PAGES.keys() & set(names) or name in names}
    folder.mkdir(parents=True, exist_ok=True)
    async with start_chromium() as browser:
        for scene, title in SCENES.items():
            if SCENES.keys() & set(names) and scene not in names:
                continue
            store = Path(tempfile.mkdtemp())
            backend = BACKENDS["files"](str(store / "realm"))
            try:
                async with serving(backend, store) as site:
                    if title:
                        await fill_realm(site.bus, title=title, text=title if scene == "hostile" else "")
                        install_generals(store / "realm" / "generals")
                        dead = await fill_court(site.bus, site.operations, title=title)
                        paths = {name: path.replace("{dead}", str(dead)) for name, path in chosen.items()}
                    else:
                        # An empty realm has only lists.
                        paths = {name: path for name, path in chosen.items() if path.count("/") == 1}
                    await draw(site, browser, folder, scene, paths)
            finally:
                backend.close()
                shutil.rmtree(store)


async def draw_store(folder: Path, store: Path) -> None:
    """Draw the pages of a store, and every tab of its newest run."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = BACKENDS["files"](str(store))
    async with start_chromium() as browser, serving(backend, store.parent) as site:
        async with site.bus.transaction() as transaction:
            newest = (await newest_runs(transaction, (), after=None, limit=1)).records[0].id
        tabs = {f"run-{tab}": f"/runs/{newest}?tab={tab}" for tab in TABS}
        pages = {name: path for name, path in PAGES.items() if not name.startswith("run-") and name != "run"}
        await draw(site, browser, folder, "store", {**pages, **tabs})


if __name__ == "__main__":
    if sys.argv[2:3] == ["--store"]:
        asyncio.run(draw_store(Path(sys.argv[1]), Path(sys.argv[3])))
    else:
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))

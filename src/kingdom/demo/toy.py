"""The toy repository of the demo: a shop of one function, and a pull request that changes it."""

from pathlib import Path

from kingdom.soldiers.checkouts.git import run_git

BRANCH = "whole-amounts"
_SHOP = '''"""The prices of a small shop."""


def total(prices: list[float]) -> float:
    """Return what all of it costs."""
    return sum(prices)
'''


async def make_repository(bare: Path, number: int) -> None:
    """Make a repository that takes pushes, with a pull request under this number."""
    checkout = bare.with_suffix(".work")
    checkout.mkdir(parents=True)

    async def run(*words: str) -> None:
        await run_git(*words, cwd=checkout, home=bare.parent)

    await run("init", "-q", "-b", "main")
    (checkout / "shop.py").write_text(_SHOP)
    await run("add", "shop.py")
    await run("commit", "-q", "-m", "Open the shop")
    await run("checkout", "-q", "-b", BRANCH)
    (checkout / "shop.py").write_text(_SHOP.replace("sum(prices)", "int(sum(prices))"))
    await run("commit", "-q", "-a", "-m", "Show whole amounts")
    await run("checkout", "-q", "main")
    await run("clone", "-q", "--bare", ".", str(bare))
    await run("-C", str(bare), "update-ref", f"refs/pull/{number}/head", BRANCH)

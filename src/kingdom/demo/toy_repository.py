"""Create the toy repository of the demo: a shop with one function, and a pull request that changes it."""

from pathlib import Path

from kingdom.soldiers.checkouts.git import run_git

BRANCH = "whole-amounts"
_SHOP = '''"""The prices of a small shop."""


def total(prices: list[float]) -> float:
    """Return the sum of all prices."""
    return sum(prices)
'''


async def create_repository(bare: Path, number: int) -> None:
    """Create a bare repository with one pull request of this number."""
    checkout = bare.with_suffix(".work")
    checkout.mkdir(parents=True)

    async def run(*arguments: str) -> None:
        await run_git(*arguments, cwd=checkout, home=bare.parent)

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

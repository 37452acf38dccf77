"""Print a page of the reference: `python -m kingdom.cli.reference cli > docs/reference/cli.md`."""

import sys

from kingdom.cli.reference.pages import PAGES

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PAGES]:
        sys.exit(f"usage: python -m kingdom.cli.reference {'|'.join(PAGES)}")
    sys.stdout.write(PAGES[sys.argv[1]]())

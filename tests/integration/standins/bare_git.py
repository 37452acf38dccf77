"""A git directory for the stand-in for GitHub."""

import subprocess
from pathlib import Path


class BareGit:
    """A bare repository with the branches main and feature, which change one file."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", self.directory], check=True)
        self.base = self.commit("main", "one\ntwo\n")
        self.head = self.commit("feature", "one\nzwei\n", self.base)

    def commit(self, branch: str, text: str, *parents: str, message: str = "Change") -> str:
        """Create a commit and return it. Set a branch to it unless the name of the branch is empty."""
        blob = self.run("hash-object", "-w", "--stdin", given=text)
        tree = self.run("mktree", given=f"100644 blob {blob}\ta.txt\n")
        options = [option for parent in parents for option in ("-p", parent)]
        sha = self.run("commit-tree", tree, *options, "-m", message)
        if branch:
            self.run("update-ref", f"refs/heads/{branch}", sha)
        return sha

    def tip(self, branch: str) -> str:
        """Return the commit of a branch."""
        return self.run("rev-parse", f"refs/heads/{branch}")

    def run(self, *arguments: str, given: str = "") -> str:
        author = ("-c", "user.name=Anna", "-c", "user.email=anna@example.org")
        argv = ["git", f"--git-dir={self.directory}", *author, *arguments]
        done = subprocess.run(argv, input=given, capture_output=True, text=True, check=True)
        return done.stdout.strip()

"""Every run of a host has ports of its own."""

import os
from pathlib import Path

import pytest

from kingdom.soldiers.workplace import run_ports
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.soldiers.workplace.run_ports import PORTS_PER_RUN, RunPorts


def folders_below(directory: Path) -> HostFolders:
    """Return the folders of a host that has just started."""
    folders = HostFolders(directory)
    folders.create()
    return folders


def test_no_two_runs_of_a_host_share_a_port(tmp_path: Path) -> None:
    folders = folders_below(tmp_path)
    bases = [folders.ports.base(f"wf-{number}") for number in range(50)]
    ports = [base + offset for base in bases for offset in range(PORTS_PER_RUN)]
    assert len(set(ports)) == len(ports)


def test_runs_keep_their_ports_when_the_host_starts_again(tmp_path: Path) -> None:
    before, after = folders_below(tmp_path), folders_below(tmp_path)
    bases = [before.ports.base(f"wf-{number}") for number in range(50)]
    assert [after.ports.base(f"wf-{number}") for number in range(50)] == bases
    assert after.ports.base("wf-new") not in bases


async def test_the_ports_of_a_removed_run_are_given_to_another_run_when_no_others_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ports, "_PORT_END", 12_000 + 3 * PORTS_PER_RUN)
    folders = folders_below(tmp_path)
    removed, kept = folders.ports.base("wf-removed"), folders.ports.base("wf-kept")
    await folders.remove_run("wf-removed")
    last = folders.ports.base("wf-last")
    assert folders.ports.base("wf-another") == removed
    assert len({removed, kept, last}) == 3


def test_if_all_ports_are_taken_the_run_with_the_oldest_request_loses_its_ports(tmp_path: Path) -> None:
    folders = folders_below(tmp_path)
    for number in range(2075):
        claim = folders.run(f"wf-{number}") / "ports"
        claim.parent.mkdir(parents=True)
        claim.write_text(f"{12_000 + PORTS_PER_RUN * number}\n")
        os.utime(claim, (1000 + number, 1000 + number))
    assert folders.ports.base("wf-last") == 32_750
    assert folders.ports.base("wf-0") == 12_000
    assert folders.ports.base("wf-one-more") == 12_010
    assert folders.ports.base("wf-1") == 12_020


def test_a_new_run_rarely_reads_the_ports_of_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_ports, "_PORT_END", 12_000 + 200 * PORTS_PER_RUN)
    scans, find_free = [], RunPorts._find_free

    def scan(ports: RunPorts) -> list[int]:
        scans.append(1)
        return find_free(ports)

    monkeypatch.setattr(RunPorts, "_find_free", scan)
    folders = folders_below(tmp_path)
    for number in range(400):
        folders.ports.base(f"wf-{number}")
    assert len(scans) == 3

"""The file with all record kinds that a store has ever had. Tools that have no application read it to move a store."""

import msgspec

from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.file_formats import safe_decoder
from kingdom.backends.files.tree.tree import FileTree
from kingdom.bus.record import RecordKind
from kingdom.errors import Misconfigured

_Directories = dict[str, dict[str, str]]
_decode = safe_decoder(msgspec.json.Decoder(_Directories))


def remember_kinds(tree: FileTree, declared: dict[str, RecordKind]) -> dict[str, RecordKind]:
    """Add the declared kinds to the file, and return all known kinds. The caller holds the lock."""
    try:
        known = _decode(read_file(tree.layout.kinds))
    except FileNotFoundError:
        known = {}
    except msgspec.MsgspecError as error:
        raise Misconfigured(
            f"cannot read {tree.layout.kinds} ({error}): fix it, or remove it; an application writes its kinds again"
        ) from error
    every = {**_without_taken(known, declared), **{name: dict(kind.directories) for name, kind in declared.items()}}
    if every != known:
        new = f"{tree.layout.kinds}.new"
        tree.disk.create(new, msgspec.json.format(msgspec.json.encode(every), indent=2) + b"\n")
        # The journal does not contain this file, so it must be synced before it replaces the old one.
        tree.disk.sync_everything(tree.layout.root)
        tree.disk.rename(new, tree.layout.kinds)
    undeclared = {name: RecordKind(name=name, directories=every[name]) for name in every.keys() - declared.keys()}
    return {**declared, **undeclared}


def _without_taken(known: _Directories, declared: dict[str, RecordKind]) -> _Directories:
    """Return the known kinds without the directories of declared kinds. A kind may have been renamed."""
    taken = {directory for kind in declared.values() for directory in kind.directories.values()}
    left = {
        name: {state: directory for state, directory in states.items() if directory not in taken}
        for name, states in known.items()
    }
    return {name: states for name, states in left.items() if states}

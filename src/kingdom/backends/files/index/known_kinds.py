"""Which kinds of record a store has ever held, and where: so that an operator needs no application to move them."""

import msgspec

from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree.tree import Tree
from kingdom.bus.record import RecordKind
from kingdom.errors import Misconfigured

_Directories = dict[str, dict[str, str]]
_decode = msgspec.json.Decoder(_Directories).decode


def remember_kinds(tree: Tree, declared: dict[str, RecordKind]) -> dict[str, RecordKind]:
    """Note the declared kinds and return them with all that were noted before; for who holds the store."""
    try:
        noted = _decode(read_file(tree.layout.kinds))
    except FileNotFoundError:
        noted = {}
    except msgspec.MsgspecError as error:
        raise Misconfigured(
            f"{tree.layout.kinds} cannot be read ({error}): mend it, or remove it; an application notes its kinds anew"
        ) from error
    every = {**_still_there(noted, declared), **{name: dict(kind.directories) for name, kind in declared.items()}}
    if every != noted:
        new = f"{tree.layout.kinds}.new"
        tree.disk.create(new, msgspec.json.format(msgspec.json.encode(every), indent=2) + b"\n")
        # No journal has it: it must last before it replaces the one that does.
        tree.disk.sync_everything(tree.layout.root)
        tree.disk.rename(new, tree.layout.kinds)
    undeclared = {name: RecordKind(name=name, directories=every[name]) for name in every.keys() - declared.keys()}
    return {**declared, **undeclared}


def _still_there(noted: _Directories, declared: dict[str, RecordKind]) -> _Directories:
    """Return noted kinds without the directories that declared ones have now: a kind may have got another name."""
    taken = {directory for kind in declared.values() for directory in kind.directories.values()}
    left = {
        name: {state: directory for state, directory in states.items() if directory not in taken}
        for name, states in noted.items()
    }
    return {name: states for name, states in left.items() if states}

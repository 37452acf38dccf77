"""Build the seccomp filter that refuses some system calls of programs in a sandbox.

Keyrings and most socket families are not isolated by namespaces. A set-user-id file that an agent creates would run
with the rights of its owner outside of the sandbox. io_uring makes calls that no filter sees. The other refused calls
expose large parts of the kernel needlessly.
"""

import os
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

_SET_ID = 0o6000
# The bits of O_CREAT and O_TMPFILE: without them the mode argument of open is undefined.
_CREATES_FILE = 0o20000100
# Calls of the x32 ABI have this bit in their number.
_X32 = 0x40000000
# AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK.
_FAMILIES = (1, 2, 10, 16)
# io_uring_setup, io_uring_enter, io_uring_register and openat2 hide their arguments from the filter.
_UNFILTERABLE = (425, 426, 427, 437)

# For each machine: the audit architecture, the numbers of the refused calls, the number of `socket`, and the calls with
# a file mode, each with its number and the argument positions of mode and flags.
_ARCHITECTURES: dict[str, tuple[int, tuple[int, ...], int, tuple[tuple[int, int, int | None], ...]]] = {
    "x86_64": (
        0xC000003E,
        # add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd
        (248, 249, 250, 298, 321, 323),
        41,
        # open, creat, chmod, fchmod, mknod, openat, mknodat, fchmodat, fchmodat2
        (
            *((2, 2, 1), (85, 1, None), (90, 1, None), (91, 1, None), (133, 1, None)),
            *((257, 3, 2), (259, 2, None), (268, 2, None), (452, 2, None)),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (217, 218, 219, 241, 280, 282),
        198,
        # mknodat, fchmod, fchmodat, openat, fchmodat2
        ((33, 2, None), (52, 1, None), (53, 2, None), (56, 3, 2), (452, 2, None)),
    ),
}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def build_filter() -> bytes | None:
    """Return the filter for this machine, or None if its system call numbers are not listed here."""
    known = _ARCHITECTURES.get(os.uname().machine)
    if known is None:
        return None
    architecture, refused, socket, with_mode = known
    instructions = [
        _instruction(_LOAD, _ARCHITECTURE),
        # Programs of another architecture are refused, because they use other call numbers.
        _instruction(_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _FAIL | EPERM),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _FAIL | EPERM),
        # With ENOSYS programs fall back to the older calls.
        *_return_for_each(_UNFILTERABLE, _FAIL | ENOSYS),
        *_return_for_each(refused, _FAIL | EPERM),
    ]
    family_check = [_argument(0), *_return_for_each(_FAMILIES, _ALLOW), _instruction(_RETURN, _FAIL | EAFNOSUPPORT)]
    instructions += [_instruction(_EQUAL, socket, 0, len(family_check)), *family_check]
    for number, mode, flags in with_mode:
        mode_check = [
            *(
                ()
                if flags is None
                else (_argument(flags), _instruction(_ANY_BIT, _CREATES_FILE, 1, 0), _instruction(_RETURN, _ALLOW))
            ),
            *(_argument(mode), _instruction(_ANY_BIT, _SET_ID, 0, 1), _instruction(_RETURN, _FAIL | EPERM)),
            _instruction(_RETURN, _ALLOW),
        ]
        instructions += [_instruction(_EQUAL, number, 0, len(mode_check)), *mode_check]
    return b"".join([*instructions, _instruction(_RETURN, _ALLOW)])


def _return_for_each(values: tuple[int, ...], answer: int) -> list[bytes]:
    return [step for value in values for step in (_instruction(_EQUAL, value, 0, 1), _instruction(_RETURN, answer))]


def _argument(place: int) -> bytes:
    return _instruction(_LOAD, _ARGUMENTS + 8 * place)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)

"""End a process when its parent dies, however the parent dies."""

import ctypes
import os
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def ending_with_parent(parent: int, number: int) -> Callable[[], None]:
    """Return a function after which the kernel sends the calling process this signal when its parent dies.

    The parent counts as dead when the thread that started the process ends. On other systems than Linux, the function
    does nothing. It loads nothing, so a child may call it before it runs its program.
    """
    if sys.platform != "linux":
        return lambda: None
    library = ctypes.CDLL(None)

    def end_with_parent() -> None:
        library.prctl(_PR_SET_PDEATHSIG, number)
        # The parent may have died before this call.
        if os.getppid() != parent:
            os._exit(1)

    return end_with_parent

"""How kernels are compiled: ahead of their first call never, and once for all processes where that can be
kept."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """`function` in machine code that runs without the interpreter's lock.

    Machine code is kept beside the source or, where that cannot be written, in the user's cache; where no
    directory can be written each process compiles anew.
    """
    try:
        return cast(Kernel, njit(cache=True, nogil=True)(function))
    except RuntimeError:
        return cast(Kernel, njit(nogil=True)(function))

"""How kernels are compiled: when first called, and once for all processes where that can be kept."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

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


def part(function: Kernel) -> Kernel:
    """`function` for kernels in its file to call: nothing of it is needed outside their machine code."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Kernel, njit(nogil=True, **options)(function))

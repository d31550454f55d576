"""Stage types of the RPEG toolchain: what every stage file contains, and how it is encoded.

This package depends on nothing but msgspec, so that the planner and the runtime agree on files and on
nothing else.
"""

"""The passes from lowering to scores, compiled, over many plans of one problem at once.

`passes.lower`, `passes.schedule` and the cost models are the definition; these kernels give the same
integers from arrays of numbers: `lowering` makes the nodes of each plan, `scheduling` starts them,
`regions` finds what GPUs hold. `tables` says what of a problem they are given, `engine` calls them. No
kernel calls one in another file, for numba's cache would not notice a change there.
"""

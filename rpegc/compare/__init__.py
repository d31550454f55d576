"""The best plans within the decision spaces of other systems and without restriction, on one cost model.

`run` searches the spaces, `data` is what is found, `show` tells it as text and CSV, `plot` draws it. The
spaces themselves stand in `passes.search.restriction`.
"""

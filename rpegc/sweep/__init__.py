"""Sweeps: one problem compiled at every point of a grid of values, and what each point costs and yields.

`vary` reads `--vary` and puts its values into the tree of the file, `points` compiles the grid, `table` tells
the result as text, CSV and JSON, `plot` draws it.
"""

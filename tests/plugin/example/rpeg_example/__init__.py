"""An example plugin for rpegc: pass `pin` and cost model `paper_free_network`."""

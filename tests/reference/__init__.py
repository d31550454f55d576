"""Plain single-process runs in plain torch, against which runs of any plan are compared."""

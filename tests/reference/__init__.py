"""A plain single-process PPO in plain torch, against which runs of any plan are compared."""

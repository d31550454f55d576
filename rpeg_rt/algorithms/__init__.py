"""What a training operator computes from its rows: the learning semantics of each RL algorithm.

Pure torch functions of local rows; whatever spans data-parallel replicas goes through the sum that the caller
injects, so that results do not depend on the plan.
"""

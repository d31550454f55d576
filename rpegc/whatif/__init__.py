"""What changes of plan, algorithm, machine and workload would buy, starting from a compiled plan."""

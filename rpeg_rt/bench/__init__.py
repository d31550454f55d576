"""Measuring a machine and single operators with the runtime's own workers (`rpeg-rt bench`).

A controller starts workers as a run does, by itself or as tasks of a launcher, and gives all of them one
job after another; each job names the workers that take part. What comes back goes, unaveraged, into a
sample file.

    jobs         what a worker can be asked to measure, and its answer
    timing       repetitions that begin together on all workers
    kernels      what is repeated: one kernel,
    transfers    one communication,
    subject      or one operator
    live         how much memory is occupied meanwhile
    worker       the worker's side, which alone imports torch
    crew         the controller's side
    machine      the jobs by which a machine is measured
    cases        the operators of a grid, and the grids that are measured by default
    run          all of it, from workers to a sample file
    command      the command line
"""

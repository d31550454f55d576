"""Snapshots: all that a run needs to go on from the end of a step as if it had never stopped.

    DIR/step-00000012/manifest.json           what is there; written last
    DIR/step-00000012/MODEL.RANK.safetensors  the pieces of a model's tensors that one worker wrote

    manifest    the manifest and the run that it describes
    directory   writing, finding and checking, and clearing away snapshots, whole or not at all
    resuming    whether a plan can go on from a snapshot, and where its run begins
    contents    which versions of which model lie where, and who writes what
    pieces      a worker's pieces into a file, and any slice of a tensor out of files

A piece is a slice of a canonical tensor (`rpeg_rt.engine`), of weights of a version or of the optimizer's
state. Which worker wrote it does not matter to who reads it, so a snapshot is resumed under any layout; a
worker reads the slices that it will hold and no more.

What is not there follows from the step: prompts, random numbers, and lines of metrics are functions of it.
"""

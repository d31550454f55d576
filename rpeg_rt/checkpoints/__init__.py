"""Hugging Face checkpoints: what a run starts from and what it leaves.

    safetensors   one file: its header, and its tensors mapped into memory
    directory     the files of a checkpoint, one or several with an index
    config        config.json: compared with a model, and written for one
    keys          which of its keys are understood, or known not to matter
    start         whether models can start from the checkpoints that they name
    export        the checkpoint of a model, laid out for workers to fill

Nothing here imports torch. Names of tensors are Hugging Face's; only a scalar head, which the engine calls
`value_head.weight`, is `score.weight` on disk, as in ...ForSequenceClassification.
"""

SCORE = "score.weight"


def saved_name(canonical: str) -> str:
    """What the engine's tensor `canonical` is called on disk."""
    return SCORE if canonical == "value_head.weight" else canonical

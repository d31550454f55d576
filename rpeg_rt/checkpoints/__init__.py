"""Hugging Face checkpoints: what a run starts from and what it leaves.

    safetensors   one file: its header, and its tensors mapped into memory
    directory     the files of a checkpoint, one or several with an index
    config        config.json: compared with a model, and written for one
    keys          which of its keys are understood, or known not to matter
    start         whether models can start from the checkpoints that they name
    export        the checkpoint of a model, laid out for workers to fill

Nothing here imports torch. Names of tensors are Hugging Face's, with two exceptions: a scalar head, which the
engine calls `value_head.weight`, is `score.weight` on disk, as in ...ForSequenceClassification, and the
experts of Mixtral, which the engine calls as Qwen's are called, have their own names.
"""

import re

SCORE = "score.weight"
_SCALAR_HEAD = "value_head.weight"
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_MIXTRAL_LETTERS = {name: letter for letter, name in _MIXTRAL.items()}
_EXPERT = re.compile(r"\.mlp\.experts\.(\d+)\.(\w+)\.weight$")
_MIXTRAL_EXPERT = re.compile(r"\.block_sparse_moe\.experts\.(\d+)\.(w[123])\.weight$")


def saved_name(canonical: str, family: str) -> str:
    """What the engine's tensor `canonical` is called in a checkpoint of `family`."""
    if canonical == _SCALAR_HEAD:
        return SCORE
    if family != "mixtral":
        return canonical
    name = canonical.replace(".mlp.gate.", ".block_sparse_moe.gate.")
    return _EXPERT.sub(lambda m: f".block_sparse_moe.experts.{m[1]}.{_MIXTRAL_LETTERS[m[2]]}.weight", name)


def canonical_name(saved: str) -> str:
    """What the engine calls a tensor of a checkpoint: the inverse of `saved_name`, whatever the family."""
    if saved == SCORE:
        return _SCALAR_HEAD
    name = saved.replace(".block_sparse_moe.gate.", ".mlp.gate.")
    return _MIXTRAL_EXPERT.sub(lambda m: f".mlp.experts.{m[1]}.{_MIXTRAL[m[2]]}.weight", name)

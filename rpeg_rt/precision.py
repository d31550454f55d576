"""Which number type a run computes and moves in. Names are numpy's and torch's alike."""

from ir_schema.model import ModelSpec

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "int32": 4}


def weight_type(spec: ModelSpec, precision: str) -> str:
    """Type of a model's weights: 2 bytes per parameter are bfloat16; a float64 run overrides all."""
    if precision == "float64":
        return "float64"
    return "bfloat16" if spec.bytes_per_parameter == 2 or precision == "bfloat16" else "float32"


def number_type(precision: str) -> str:
    """Type of log-probabilities, values and rewards."""
    return "float64" if precision == "float64" else "float32"

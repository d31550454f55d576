"""The statements of the text form: one table of shapes that the parser and the printer both follow.

    file      = "rpeg" "1"  "graph" name "{" statement* "}"
    statement = keyword, the words and signs of its shape, and a block where the shape ends in one
    block     = "{" [ entry { ("," | new line) entry } ] "}"
    entry     = name "=" value
    value     = expression | string | name | "true" | "false" | "none" | "[" values "]" | block
    expression= numbers and names with + - * / and parentheses, function "(" name ")"
    name      = bare word | string
    comment   = "#" to the end of the line

Which keys a block may have is not written here: it follows from the record that the block fills.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

VERSION = "1"

Part = Literal["name", "names", "string", "->", ":", "block"]


@dataclass(frozen=True)
class Shape:
    """The parts that follow a keyword, and whether the statement may stand only once."""

    parts: tuple[Part, ...]
    example: str
    once: bool = False


SHAPES: Mapping[str, Shape] = {
    "about": Shape(("string",), 'about "what this is"', once=True),
    "options": Shape(("block",), "options { steps = 8, split = auto }", once=True),
    "cluster": Shape(("block",), 'cluster { hardware = "h100", racks = 1, nodes = 2, gpus = 8 }', once=True),
    "workload": Shape(
        ("block",),
        "workload { prompts = 64, rollouts = 8, prompt_length = 256, response_length = 1024 }",
        once=True,
    ),
    "model": Shape(
        ("name", ":", "name", "block"), 'model actor : lm { arch = "llama-2-13b", trainable = true }'
    ),
    "verifier": Shape(("name", "block"), "verifier exact { seconds_per_response = 1e-3, workers = 4 }"),
    "use": Shape(("name", "block"), "use grpo { actor = actor, reference = reference, reward = exact }"),
    "container": Shape(("name", "block"), "container r { elements = prompts * rollouts, bytes_each = 4 }"),
    "op": Shape(
        ("name", ":", "name", "block"),
        "op ref_inf : inference { model = ref, reads = [W_ref, Y], writes = [logp_ref] }",
    ),
    "data": Shape(("name", "->", "name", ":", "name"), "data actor_gen -> ref_inf : Y"),
    "publish": Shape(("name", "->", "name", ":", "name"), "publish actor_train -> actor_gen : W_actor"),
    "input": Shape(("names",), "input X, W_ref"),
    "output": Shape(("names",), "output metrics"),
    "plan": Shape(("name", "block"), "plan actor_gen { tensor_parallel = 4 }"),
    "search": Shape(("block",), "search { staleness = { actor = [0, 1] } }", once=True),
    "run": Shape(("block",), 'run { steps = 100, prompts = "prompts.jsonl" }', once=True),
}

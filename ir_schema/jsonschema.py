"""JSON Schemas of the stage files, generated from the types and kept under `schemas/`.

`python -m ir_schema.jsonschema` writes them anew; a test compares the kept ones with the types.
"""

from pathlib import Path
from typing import Any

import msgspec

from ir_schema.envelope import STAGES, VERSION, Envelope

DIRECTORY = Path(__file__).parent / "schemas"


def stage_schema(stage: str) -> bytes:
    """The JSON Schema (draft 2020-12) of the file of `stage`: the envelope around its body."""
    (_, body), components = msgspec.json.schema_components(
        [Envelope, STAGES[stage]], ref_template="#/$defs/{name}"
    )
    head: dict[str, Any] = dict(components.pop("Envelope"))
    head["properties"] = dict(head["properties"]) | {
        "schema": {"const": f"rpeg.{stage}"},
        "version": {"const": VERSION},
        "id": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "body": body,
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rpeg.{stage}",
        **{k: v for k, v in head.items() if k != "title"},
        "$defs": {name: components[name] for name in sorted(components)},
    }
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def write_schemas() -> None:
    """Write every stage's schema to its kept file."""
    DIRECTORY.mkdir(exist_ok=True)
    for stage in STAGES:
        (DIRECTORY / f"{stage}.json").write_bytes(stage_schema(stage))


if __name__ == "__main__":
    write_schemas()

"""The envelope around every stage on disk, its canonical bytes and its content hash.

`id` is the SHA-256 of the canonical bytes of {schema, version, body}: comments, releases and pass
options change no id. Canonical: fields in declaration order, maps sorted by key, shortest round-trip
floats, two-space indent, LF, one final newline. No time stamps, host names or absolute paths.
"""

import hashlib
from functools import cache
from typing import Any

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, SourceMap, error
from ir_schema.problem import Problem
from ir_schema.stages import Configuration, Costed, Executable, Lowered, Scheduled, Unrolled

VERSION = 1
PRODUCER = "rpegc"

STAGES: dict[str, type[Record]] = {
    "problem": Problem,
    "configuration": Configuration,
    "unrolled": Unrolled,
    "lowered": Lowered,
    "costed": Costed,
    "scheduled": Scheduled,
    "executable": Executable,
}

_encoder = msgspec.json.Encoder(order="deterministic")


class Envelope(Record, frozen=True, kw_only=True):
    """A stage file. `schema` is `rpeg.<stage>`; `parent` is the id of the stage it was made from."""

    schema: str
    version: int
    producer: str
    id: str
    parent: str | None = None
    produced_by: str | None = None
    external: dict[str, str] = {}
    source_map: SourceMap = {}
    body: msgspec.Raw


def stage_name(body: Record) -> str:
    """Name of the stage that `body` is."""
    for name, kind in STAGES.items():
        if type(body) is kind:
            return name
    raise TypeError(f"{type(body).__name__} is not a stage")


@cache
def _defaults(kind: type[Record]) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, f.default) for f in msgspec.structs.fields(kind))


def normal(value: Any) -> Any:
    """`value` with every field that equals its default being that default.

    Encoding leaves out what *is* a default, so a default that was written or computed would otherwise
    give other bytes than one that was not.
    """
    if isinstance(value, Record):
        kind, fields = type(value), {}
        for name, default in _defaults(kind):
            given = normal(getattr(value, name))
            fields[name] = default if given == default else given
        return kind(*fields.values()) if kind.__struct_config__.array_like else kind(**fields)
    if isinstance(value, list | tuple):
        return tuple(normal(item) for item in value)
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    return value


def canonical(value: object) -> bytes:
    """Compact canonical bytes of `value` (what hashes are taken of)."""
    return _encoder.encode(normal(value))


def pretty(value: object) -> bytes:
    """Canonical bytes as they are written to disk: two-space indent, LF, final newline."""
    return msgspec.json.format(canonical(value), indent=2) + b"\n"


def content_id(schema: str, version: int, body: bytes) -> str:
    """SHA-256 (hex) of the canonical bytes of {schema, version, body}; `body` is already canonical."""
    head = f'{{"schema":"{schema}","version":{version},"body":'.encode()
    return hashlib.sha256(head + body + b"}").hexdigest()


def identify(body: Record) -> str:
    """The id that `body` has as a stage."""
    return content_id(f"rpeg.{stage_name(body)}", VERSION, canonical(body))


def encode_stage(
    body: Record,
    *,
    parent: str | None = None,
    produced_by: str | None = None,
    external: dict[str, str] | None = None,
    source_map: SourceMap | None = None,
) -> bytes:
    """The bytes of the stage file of `body`.

    Raises ValueError if the body does not decode to itself (NaN and infinity become null in JSON, and
    msgspec does not check types when a struct is built).
    """
    raw = canonical(body)
    if msgspec.json.decode(raw, type=type(body)) != body:
        raise ValueError(f"stage {stage_name(body)} does not survive encoding")
    schema = f"rpeg.{stage_name(body)}"
    return pretty(
        Envelope(
            schema=schema,
            version=VERSION,
            producer=PRODUCER,
            id=content_id(schema, VERSION, raw),
            parent=parent,
            produced_by=produced_by,
            external=external or {},
            source_map=source_map or {},
            body=msgspec.Raw(raw),
        )
    )


def is_envelope(value: Any) -> bool:
    """Whether decoded JSON looks like a stage file rather than a bare problem."""
    return isinstance(value, dict) and isinstance(value.get("schema"), str) and "body" in value


def decode_stage(data: bytes, *, check_id: bool = True) -> tuple[Envelope, Record]:
    """Read a stage file.

    Raises DiagnosticError E901 (not a stage file), E902 (unknown schema or version), E903 (body does not
    match its schema) or E904 (the id does not match the content: the file was changed).
    """
    try:
        envelope = msgspec.json.decode(data, type=Envelope)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise DiagnosticError([error("E901", f"not a stage file: {exc}")]) from exc
    kind = STAGES.get(envelope.schema.removeprefix("rpeg."))
    if kind is None or envelope.version != VERSION:
        raise DiagnosticError(
            [
                error(
                    "E902",
                    f"cannot read schema `{envelope.schema}` version {envelope.version}",
                    help=f"this release reads version {VERSION} of: {', '.join(STAGES)}",
                )
            ]
        )
    try:
        body = msgspec.json.decode(envelope.body, type=kind)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise DiagnosticError([error("E903", f"malformed `{envelope.schema}`: {exc}")]) from exc
    if check_id and content_id(envelope.schema, envelope.version, canonical(body)) != envelope.id:
        raise DiagnosticError(
            [
                error(
                    "E904",
                    "the content does not match its id: the file was changed after it was written",
                    help="compile the problem again instead of editing a stage file",
                )
            ]
        )
    return envelope, body

"""A trace as Chrome trace JSON, which ui.perfetto.dev opens: one track per GPU and one for the host."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ir_schema.trace import Complete, Dispatch, Header, Line, Part
from rpeg_rt.files import write_atomically

_CONTROLLER = 1_000_000


def convert(events: Iterable[Line]) -> dict[str, Any]:
    """Spans of what every worker did, coloured by step, with arrows from sender to receiver of a transfer."""
    spans: list[dict[str, Any]] = []
    dispatched: dict[tuple[int, int], Dispatch] = {}
    flows = 0
    for event in events:
        if isinstance(event, Header):
            spans += _tracks(event)
        elif isinstance(event, Dispatch):
            dispatched[event.node, event.step] = event
        elif isinstance(event, Complete):
            d = dispatched.pop((event.node, event.step))
            parts = dict(event.parts)
            if event.host is not None:
                parts[_CONTROLLER] = event.host
            spans += [_span(d, rank, part) for rank, part in parts.items()]
            for rank, part in event.parts.items():
                for peer, size in part.sent.items():
                    flows += 1
                    spans += _arrow(flows, size, (rank, part.start_ns), (peer, event.parts[peer].finish_ns))
    return {"traceEvents": spans, "displayTimeUnit": "ms"}


def _tracks(header: Header) -> list[dict[str, Any]]:
    names = {rank: f"GPU {device} (worker {rank})" for rank, device in header.workers.items()}
    names[_CONTROLLER] = "host"
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"rpeg-rt, plan {header.plan[:12]}"}}
    ]
    for rank, name in names.items():
        found.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": name}})
        found.append(
            {"ph": "M", "pid": 0, "tid": rank, "name": "thread_sort_index", "args": {"sort_index": rank}}
        )
    return found


def _span(d: Dispatch, rank: int, part: Part) -> dict[str, Any]:
    phase = f" phase {d.phase}" if d.phase is not None and d.phase > 1 else ""
    return {
        "ph": "X",
        "pid": 0,
        "tid": rank,
        "name": d.vertex + phase if d.kind == "Op" else f"{d.kind} for {d.vertex}",
        "cat": d.kind,
        "ts": part.start_ns / 1000,
        "dur": max(part.finish_ns - part.start_ns, 1) / 1000,
        "args": {
            "node": d.node,
            "step": d.step,
            "layout": part.layout,
            "versions read": part.reads,
            "versions written": part.writes,
            "bytes sent": sum(part.sent.values()),
            "bytes received": sum(part.received.values()),
            "dispatched (us)": d.time_ns / 1000,
        },
    }


def _arrow(number: int, size: int, start: tuple[int, int], end: tuple[int, int]) -> list[dict[str, Any]]:
    common = {"pid": 0, "cat": "transfer", "name": f"{size} B", "id": number}
    return [
        common | {"ph": "s", "tid": start[0], "ts": start[1] / 1000},
        common | {"ph": "f", "bp": "e", "tid": end[0], "ts": end[1] / 1000},
    ]


def write_perfetto(events: Iterable[Line], path: Path) -> None:
    """Convert and write atomically. Raises FileError."""
    write_atomically(path, json.dumps(convert(events)).encode())

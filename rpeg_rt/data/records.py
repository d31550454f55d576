"""Files of records: JSONL (one object per line), and Parquet where `pyarrow` is installed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpeg_rt.data.errors import DataError


@dataclass(frozen=True)
class Located:
    """A record, its number in the file from 1 (of its line or row), and the place in words."""

    record: dict[str, Any]
    number: int
    where: str

    def text(self, field: str) -> str:
        """The string under `field`. Raises DataError."""
        if field not in self.record:
            listed = ", ".join(self.record) or "no fields"
            raise DataError(f"{self.where}: no field `{field}`; the line has {listed}")
        text = self.record[field]
        if not isinstance(text, str):
            raise DataError(f"{self.where}: field `{field}` must be a string, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            message = f"{self.where}: field `{field}` has half of a surrogate pair, which is no text"
            raise DataError(message) from exc
        return text


def read_records(path: Path) -> Iterator[Located]:
    """The records of a file, Parquet if its name ends in `.parquet`; blank lines of JSONL are passed over.

    Raises DataError with file and place.
    """
    yield from _parquet(path) if path.suffix == ".parquet" else _lines(path)


def _lines(path: Path) -> Iterator[Located]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise DataError(f"cannot read prompts {path}: {exc.strerror}") from exc
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as exc:  # malformed JSON or UTF-8, or nested without end
            raise DataError(f"{where}: not a line of JSON: {exc}") from exc
        if not isinstance(record, dict):
            raise DataError(f"{where}: a JSON object is needed, not {type(record).__name__}")
        yield Located(record, number, where)


def _parquet(path: Path) -> Iterator[Located]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as exc:
        raise DataError(
            f"reading {path} needs the package `pyarrow`: install rpeg[parquet], or give a JSONL file"
        ) from exc
    number = 0
    try:
        with path.open("rb") as source, pyarrow.parquet.ParquetFile(source) as file:
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield Located(record, number, f"{path}, row {number}")
    except OSError as exc:
        raise DataError(f"cannot read prompts {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: a string after row {number} is no UTF-8: {exc}") from exc
    except pyarrow.ArrowException as exc:
        raise DataError(f"{path} is no Parquet file that can be read: {exc}") from exc

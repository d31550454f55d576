"""Snapshots in a directory: written beside their place and moved there when they are complete.

A crash or a full disk leaves a hidden directory behind, which the next snapshot clears away, and every
snapshot that was complete before.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from rpeg_rt.failure import FileError
from rpeg_rt.files import synchronise
from rpeg_rt.snapshots.manifest import MANIFEST, VERSION, Manifest, Piece

_NAME = re.compile(r"step-(\d{8,})")
_PART = ".part"


def place_of(directory: Path, step: int) -> Path:
    """Where the snapshot after `step` steps lies."""
    return directory / f"step-{step:08d}"


def begin(directory: Path, step: int) -> Path:
    """An empty directory for the files of a snapshot after `step` steps. Raises OSError."""
    for old in directory.glob(f".step-*{_PART}"):
        shutil.rmtree(old)
    part = directory / f".{place_of(directory, step).name}{_PART}"
    part.mkdir()
    return part


def finish(part: Path, manifest: Manifest, keep: int) -> Path:
    """All files are in `part`: add the manifest and move all into place, then clear away all but the newest
    `keep` snapshots up to this one. Raises OSError, after which the older ones are still there."""
    with (part / MANIFEST).open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    synchronise(part)
    place = place_of(part.parent, manifest.step)
    if place.exists():
        shutil.rmtree(place)  # Damaged: a run goes on from the newest snapshot that is not.
    part.rename(place)
    synchronise(part.parent)
    for step in [s for s in _steps(part.parent) if s <= manifest.step][keep:]:
        shutil.rmtree(place_of(part.parent, step), ignore_errors=True)
    return place


def _steps(directory: Path) -> list[int]:
    """Steps of the snapshots in a directory, newest first."""
    found = (_NAME.fullmatch(p.name) for p in directory.iterdir())
    return sorted((int(m[1]) for m in found if m), reverse=True)


def refuse_others(directory: Path, resumed: Path | None) -> None:
    """Raises FileError where `directory` has snapshots of another run than the one that is `resumed`."""
    if has_snapshots(directory) and resumed != directory.resolve():
        raise FileError(
            f"{directory} has snapshots of a run already; go on with it by --resume {directory}, give --save "
            "another directory, or remove them"
        )


def has_snapshots(directory: Path) -> bool:
    """Whether a directory has snapshots, whole or not; one that is not there has none."""
    try:
        return directory.is_dir() and bool(_steps(directory))
    except OSError as exc:
        raise FileError(f"cannot read {directory}: {exc.strerror}") from exc


def newest(directory: Path, warn: Callable[[str], None]) -> tuple[Path, Manifest]:
    """The newest snapshot that is whole, every byte of it; `warn` is told of those that are not.

    Raises FileError where there is none.
    """
    try:
        steps = _steps(directory)
    except OSError as exc:
        raise FileError(f"cannot read the snapshots in {directory}: {exc.strerror}") from exc
    for step in steps:
        place = place_of(directory, step)
        try:
            return place, _checked(place, step)
        except FileError as exc:
            warn(f"{exc}; falling back to the one before")
    if steps:
        raise FileError(f"none of the {len(steps)} snapshots in {directory} is whole")
    raise FileError(f"{directory} has no snapshot (`step-…`); give the directory that --save was given")


def read_manifest(place: Path) -> Manifest:
    """The manifest of the snapshot at `place`. Raises FileError."""
    try:
        manifest = msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
    except OSError as exc:
        raise FileError(f"the snapshot {place} is damaged: {MANIFEST}: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise FileError(f"the snapshot {place} is damaged: {MANIFEST}: {exc}") from exc
    if manifest.version != VERSION:
        raise FileError(f"the snapshot {place} is of another release (format {manifest.version})")
    return manifest


def _checked(place: Path, step: int) -> Manifest:
    manifest = read_manifest(place)
    if manifest.step != step:
        raise FileError(f"the snapshot {place} is damaged: {MANIFEST} speaks of step {manifest.step}")
    with ThreadPoolExecutor() as pool:
        wrong = [
            text for text in pool.map(lambda f: _wrong(place / f[0], f[1]), manifest.files.items()) if text
        ]
    if wrong:
        raise FileError(f"the snapshot {place} is damaged: {wrong[0]}")
    return manifest


def _wrong(path: Path, piece: Piece) -> str | None:
    """What is wrong with a file, if anything."""
    try:
        size = path.stat().st_size
        if size != piece.bytes:
            return f"{path.name} has {size} bytes, not {piece.bytes}"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != piece.sha256:
                return f"the content of {path.name} was changed"
    except OSError as exc:
        return f"{path.name}: {exc.strerror}"
    return None

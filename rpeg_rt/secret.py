"""The secret by which the tasks of one run know each other.

Under a launcher all must arrive at the same one without talking: from RPEG_RT_SECRET, which batch scripts
set anew for every run, else derived for the run from a key that the user keeps in a file, made when it is
first needed.
"""

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rpeg_rt.failure import FileError

VARIABLE = "RPEG_RT_SECRET"
SHORTEST = 16
"""Characters of a secret that is given."""


def fresh_secret() -> str:
    """A secret for a run that starts its own workers."""
    return secrets.token_hex(32)


def shared_secret(run: str, environment: Mapping[str, str]) -> str:
    """The secret of `run`, the same on all nodes where the variable or the user's key is.

    Raises FileError for a variable that is too short, and for a key that cannot be kept or that others may
    read.
    """
    given = environment.get(VARIABLE)
    if given is None:
        return hmac.new(_key(environment), run.encode(), hashlib.sha256).hexdigest()
    if len(given) < SHORTEST:
        raise FileError(f"{VARIABLE} has {len(given)} characters; give it {SHORTEST} or more")
    return given


def _key(environment: Mapping[str, str]) -> bytes:
    """The user's key; the first process that needs it makes it."""
    path = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "rpeg" / "key"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # mode 0600
                draft.write(secrets.token_bytes(32))
                draft.flush()
                _publish(draft.name, path)
        if path.stat().st_mode & 0o077:
            raise FileError(f"others may read the key {path}; chmod 600 it, or set {VARIABLE}")
        return path.read_bytes()
    except OSError as exc:
        raise FileError(
            f"cannot keep a key in {path} ({exc.strerror}); set {VARIABLE} to one value on all nodes"
        ) from exc


def _publish(draft: str, path: Path) -> None:
    """Give a complete file its name, unless another process was faster."""
    with suppress(FileExistsError):
        os.link(draft, path)

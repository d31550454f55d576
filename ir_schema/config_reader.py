"""Typed access to a model's `config.json`, with findings that name it."""

import json
from collections.abc import Mapping
from typing import Any

from ir_schema.diagnostics import DiagnosticError, error


class Reader:
    """Typed access to one config, with errors that name it."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def fail(self, code: str, message: str, help: str = "") -> DiagnosticError:
        """A finding about this config."""
        return DiagnosticError([error(code, f"model config `{self.name}`: {message}", "models", help=help)])

    def first(self, *keys: str) -> tuple[str, Any]:
        """The first of `keys` that is present and not null, with its value; ("", None) if none is."""
        for key in keys:
            if self.config.get(key) is not None:
                return key, self.config[key]
        return "", None

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The whole number under the first of `keys`; E322 without it and without a default."""
        key, value = self.first(*keys)
        if not key:
            if default is None:
                raise self.fail("E322", f"key `{keys[0]}` is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fail("E322", f"`{key}` = {value!r} must be a whole number >= {least}")
        return value

    def number(self, *keys: str, default: float) -> float:
        """The positive number under the first of `keys`."""
        key, value = self.first(*keys)
        if not key:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fail("E322", f"`{key}` = {value!r} must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The truth value under `key`."""
        value = self.config.get(key)
        if value is None:
            return default
        if value not in (True, False, 0, 1, 2):
            raise self.fail("E322", f"`{key}` = {value!r} must be true or false")
        return bool(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The object under `key`, {} without it."""
        value = self.config.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.fail("E322", f"`{key}` must be an object")
        return value

    def refuse(self, what: str) -> DiagnosticError:
        """The finding that `what` is not understood."""
        return self.fail("E321", f"{what} is not understood", "its parameters would be guessed")


def decode_config(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in a `config.json`; `Infinity` and `NaN`, which published files contain, are accepted.

    Raises DiagnosticError E322.
    """
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise DiagnosticError([error("E322", f"`{name}` is not JSON: {exc}", "models")]) from exc
    if not isinstance(config, dict):
        raise DiagnosticError([error("E322", f"`{name}` is not a model config: not a JSON object", "models")])
    return config

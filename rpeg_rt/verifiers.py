"""Verifiers: callables that reward a response, shipped ones and the user's own.

A verifier is `verify(prompt: str, response: str, record: dict) -> float`; `record` is the prompt's whole JSON
object. It must not depend on order or on other responses: calls run in several processes.
"""

import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from rpeg_rt.failure import FileError, UserCodeError

Verifier = Callable[[str, str, dict[str, Any]], float]

# A sign after a digit is an operator; commas are between thousands; what a response spells out at length, or
# with a huge exponent, is not computed.
_NUMBER = re.compile(
    r"(?:(?<!\d)[-+−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?"
)
_LONGEST = 1000


def exact_match(prompt: str, response: str, record: dict[str, Any]) -> float:
    """1 if the response, without surrounding white space, is the record's `answer`."""
    return float(response.strip() == _answer(record).strip())


def numeric(prompt: str, response: str, record: dict[str, Any]) -> float:
    """1 if the last number in the response has the value of the record's `answer`."""
    found, wanted = _last_number(response), _last_number(_answer(record))
    if wanted is None:
        raise ValueError(f"the answer {_answer(record)!r} is not a number")
    return float(found == wanted)


def math(prompt: str, response: str, record: dict[str, Any]) -> float:
    """1 if the mathematics in the response (LaTeX or plain, the last of it, a box first) equals that of the
    record's `answer`. By the package `math-verify`, which limits its own time to a few seconds."""
    from math_verify import parse, verify

    answer = _answer(record)
    wanted = parse(answer) or parse(f"${answer}$")
    if not wanted:
        raise ValueError(f"the answer {answer!r} is no mathematical expression")
    return float(verify(wanted, parse(response)))


SHIPPED: dict[str, Verifier] = {"exact_match": exact_match, "numeric": numeric, "math": math}
GROUP = "rpeg_rt.verifiers"
"""Entry points under which installed packages offer verifiers by a short name."""


def _registered(name: str) -> Verifier:
    """A shipped verifier, or one that an installed package registers. Raises FileError, UserCodeError."""
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        raise FileError("verifier `math` needs the package `math-verify`: install rpeg[math]")
    if name in SHIPPED:
        return SHIPPED[name]
    offered = {e.name: e for e in importlib.metadata.entry_points(group=GROUP)}
    if name not in offered:
        known = ", ".join(f"`{n}`" for n in [*SHIPPED, *sorted(offered)])
        raise FileError(f"no verifier `{name}`: write `module:function`, or one of {known}")
    try:
        verifier: Verifier = offered[name].load()
    except Exception as exc:
        raise UserCodeError(f"verifier `{name}` cannot be imported: {last_line(exc)}") from exc
    return verifier


def load_verifier(name: str, directory: Path) -> Verifier:
    """The verifier that is shipped or registered as `name`, or the function of `module:function`.

    The module may lie in `directory` (the problem's) or be installed. Raises FileError if there is no such
    verifier, UserCodeError if its module cannot be imported.
    """
    if ":" not in name:
        return _registered(name)
    module_name, _, function_name = name.partition(":")
    place = str(directory.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name and f"{module_name}.".startswith(f"{exc.name}."):
            raise FileError(f"verifier `{name}`: no module `{module_name}` in {place} or installed") from exc
        raise UserCodeError(f"verifier `{name}` cannot be imported: {last_line(exc)}") from exc
    function = getattr(module, function_name, None)
    if not callable(function):
        raise FileError(f"verifier `{name}`: {module.__file__} has no function `{function_name}`")
    verifier: Verifier = function
    return verifier


def as_reward(value: object) -> float:
    """What a verifier returned as a number: Python's, numpy's or torch's. Raises TypeError."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise TypeError(f"it returned {value!r:.60}, which is a {type(value).__name__} and no number")


def last_line(exc: BaseException) -> str:
    """The exception and the place in the user's code that raised it, or that cannot be parsed."""
    if isinstance(exc, SyntaxError) and exc.filename and Path(exc.filename).is_file():
        return f"{type(exc).__name__}: {exc.msg} ({exc.filename}:{exc.lineno})"
    here = Path(__file__).parent
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(exc.__traceback__)]
    places = [(file, n) for file, n in places if Path(file).parent != here and not file.startswith("<frozen")]
    where = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    return f"{type(exc).__name__}: {exc}{where}"


def _answer(record: dict[str, Any]) -> str:
    if "answer" not in record:
        raise ValueError(f"the line has no field `answer`; it has {', '.join(record)}")
    return str(record["answer"])


def _last_number(text: str) -> Fraction | None:
    found = _NUMBER.findall(text)
    if not found or len(found[-1]) > _LONGEST:
        return None
    return Fraction(found[-1].replace(",", "").replace("−", "-"))

"""Tree values to records of `ir_schema`, by the records' own field types, for text and JSON alike.

Every record that is filled enters its places into the source map. Findings are collected; a field that
cannot be converted makes its record invalid without hiding the errors of its neighbours.
"""

import difflib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, Label, SourceMap, Span
from rpegc.failure import suggestion
from rpegc.text import tree
from rpegc.text.findings import finding

LARGEST = 2**63 - 1

R = TypeVar("R", bound=Record)


class Rejected(Exception):
    """A value was reported as unusable."""


class Converter:
    """Collects findings and the source map while values are converted.

    `names` are what expressions may refer to, `functions` what they may call; a function reports what is
    wrong with its argument and raises Rejected. Names are None where an earlier finding hides them. `block`,
    `string` and `none` are what messages call these values.
    """

    block, string, none = "a block", "a string or a name", "none"

    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []
        self.source_map: SourceMap = {}
        self.names: Mapping[str, int] | None = {}
        self.functions: Mapping[str, Callable[[tree.Call], int]] = {}

    def reject(self, code: str, message: str, span: Span, text: str = "", help: str = "") -> typing.NoReturn:
        """Note a finding and give up the value."""
        self.problems.append(finding(code, message, span, text=text, help=help))
        raise Rejected

    # records

    def record(self, block: tree.Block, kind: type[R], path: str, span: Span, what: str = "") -> R:
        """The record of type `kind` that `block`, found at `path`, spells.

        Raises Rejected after reporting E011 (unknown key), E012 (missing key), E013 (key given twice) and
        the errors of the values.
        """
        self.source_map[path] = span
        what = what or (f"`{path}`" if path else "the problem")
        values, valid = self.entries(block, field_types(kind), path, what)
        return self.build(kind, values, valid, block, span, what)

    def entries(
        self, block: tree.Block, types: Mapping[str, Any], path: str, what: str
    ) -> tuple[dict[str, Any], bool]:
        """The values of a block with keys and types as given, and whether nothing was reported."""
        values: dict[str, Any] = {}
        valid = True
        seen: dict[str, tree.Entry] = {}
        for entry in block.entries:
            key = entry.key.text
            if not self.fresh_key(entry, seen):
                valid = False
            elif key not in types:
                help = suggestion(key, types)
                message = f"unknown key `{key}` in {what}"
                self.problems.append(finding("E011", message, entry.key.span, help=help))
                valid = False
            else:
                try:
                    values[key] = self.value(entry.value, types[key], join(path, key), entry)
                except Rejected:
                    valid = False
        return values, valid

    def build(
        self, kind: type[R], values: Mapping[str, Any], valid: bool, block: tree.Block, span: Span, what: str
    ) -> R:
        """The record of `values`, which came from `block`. Raises Rejected if a key is missing or invalid."""
        required = [f.name for f in msgspec.structs.fields(kind) if f.required and f.name not in values]
        missing = missing_keys(block, field_types(kind), required)
        if missing:
            self.problems.append(finding("E012", f"{what} lacks {missing}", span))
        if missing or not valid:
            raise Rejected
        return kind(**values)

    def fresh_key(self, entry: tree.Entry, seen: dict[str, tree.Entry]) -> bool:
        """Note the key of `entry`; False, after reporting E013, if the block has had it before."""
        first = seen.setdefault(entry.key.text, entry)
        if first is entry:
            return True
        also = (Label(span=first.key.span, text="first given here"),)
        message = f"`{entry.key.text}` is given twice"
        self.problems.append(finding("E013", message, entry.key.span, also=also))
        return False

    # values

    def value(self, value: tree.Value, kind: Any, path: str, entry: tree.Entry | None = None) -> Any:
        """`value` as the type annotation `kind`. Raises Rejected after reporting E014 and the like."""
        self.source_map[path] = _place(value, entry)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            if isinstance(value, tree.Name) and value.text == "none":
                return None
            kinds = [a for a in arguments if a is not type(None)]
            blocks = [k for k in kinds if isinstance(k, type) and issubclass(k, Record)]
            wanted = blocks if blocks and (isinstance(value, tree.Block) or len(kinds) == 1) else kinds
            return self.value(value, wanted[0], path, entry)
        if origin is typing.Literal:
            return self.literal(value, arguments)
        if origin is tuple:
            return self.sequence(value, arguments, path)
        if origin is dict:
            return self.mapping(value, arguments[1], path)
        if isinstance(kind, type) and issubclass(kind, Record):
            return self.nested(value, kind, path)
        return self.scalar(value, kind)

    def literal(self, value: tree.Value, choices: tuple[str, ...]) -> str:
        """One of a fixed set of words."""
        word = (
            value.text
            if isinstance(value, tree.Name)
            else value.value
            if isinstance(value, tree.Text)
            else None
        )
        if word in choices:
            return str(word)
        listed = ", ".join(f"`{c}`" for c in choices)
        help = suggestion(word or "", list(choices))
        return self.reject(
            "E014", f"expected one of {listed}, found {self.describe(value)}", value.span, help=help
        )

    def sequence(self, value: tree.Value, arguments: tuple[Any, ...], path: str) -> tuple[Any, ...]:
        """A list, as tuple[X, ...] or tuple[X, Y]."""
        if not isinstance(value, tree.List):
            self.reject("E014", f"expected a list, found {self.describe(value)}", value.span)
        kinds = list(arguments)
        if arguments[-1] is Ellipsis:
            kinds = [arguments[0]] * len(value.elements)
        elif len(value.elements) != len(kinds):
            self.reject("E014", f"expected {len(kinds)} elements, found {len(value.elements)}", value.span)
        result: list[Any] = []
        for i, (element, kind) in enumerate(zip(value.elements, kinds, strict=True)):
            try:
                result.append(self.value(element.value, kind, f"{path}[{i}]"))
            except Rejected:
                continue
        if len(result) < len(kinds):
            raise Rejected
        return tuple(result)

    def mapping(self, value: tree.Value, kind: Any, path: str) -> dict[str, Any]:
        """A block with keys of the user's choice."""
        if not isinstance(value, tree.Block):
            self.reject("E014", f"expected {self.block}, found {self.describe(value)}", value.span)
        result: dict[str, Any] = {}
        valid = True
        seen: dict[str, tree.Entry] = {}
        for entry in value.entries:
            try:
                valid &= self.fresh_key(entry, seen)
                result[entry.key.text] = self.value(entry.value, kind, join(path, entry.key.text), entry)
            except Rejected:
                valid = False
        if not valid:
            raise Rejected
        return result

    def nested(self, value: tree.Value, kind: type[Record], path: str) -> Record:
        """A record inside a record: a block, or a list of the fields of an array-like one."""
        if kind.__struct_config__.array_like:
            fields = msgspec.structs.fields(kind)
            return kind(*self.sequence(value, tuple(f.type for f in fields), path))
        if not isinstance(value, tree.Block):
            self.reject("E014", f"expected {self.block}, found {self.describe(value)}", value.span)
        return self.record(value, kind, path, self.source_map[path])

    def scalar(self, value: tree.Value, kind: type) -> bool | int | float | str:
        """A truth value, a string or a number."""
        if kind is bool:
            if isinstance(value, tree.Name) and value.text in ("true", "false"):
                return value.text == "true"
            self.reject("E014", f"expected `true` or `false`, found {self.describe(value)}", value.span)
        if kind is str:
            if isinstance(value, tree.Text):
                return value.value
            if isinstance(value, tree.Name) and value.text not in ("true", "false", "none"):
                return value.text
            self.reject("E014", f"expected {self.string}, found {self.describe(value)}", value.span)
        what = "an integer" if kind is int else "a number"
        if isinstance(value, tree.Text | tree.List | tree.Block):
            self.reject("E014", f"expected {what}, found {self.describe(value)}", value.span)
        if isinstance(value, tree.Name) and value.text in ("true", "false", "none"):
            self.reject("E014", f"expected {what}, found {self.describe(value)}", value.span)
        number = self.number(value)
        if kind is float:
            return float(number)
        if number != int(number):
            self.reject("E014", f"expected an integer, found {self.describe(value)}", value.span)
        return int(number)

    def number(self, value: tree.Value) -> int | float:
        """The value of an expression: integers exactly, `/` only where it leaves no remainder."""
        if isinstance(value, tree.Number):
            digits = value.text.replace("_", "")
            if digits.isdigit():
                return self.bounded(int(digits) if len(digits) < 20 else LARGEST + 1, value)
            return self.bounded(float(digits), value)
        if isinstance(value, tree.Negative):
            return -self.number(value.operand)
        if isinstance(value, tree.Operation):
            first, *others = tree.terms(value)
            result = self.operation(first, self.number(first.left))
            for operation in others:
                result = self.operation(operation, result)
            return result
        if isinstance(value, tree.Call):
            return self.call(value)
        if isinstance(value, tree.Name):
            if self.names is None:
                raise Rejected
            if value.text in self.names:
                return self.names[value.text]
            if not self.names:
                self.reject("E014", f"expected a number, found {self.describe(value)}", value.span)
            help = suggestion(value.text, self.names)
            self.reject("E155", f"unknown name `{value.text}` in an expression", value.span, help=help)
        return self.reject("E014", f"expected a number, found {self.describe(value)}", value.span)

    def operation(self, value: tree.Operation, left: int | float) -> int | float:
        """left operator right, where `left` is known"""
        return self.bounded(self.operated(value, left, self.number(value.right)), value)

    def operated(self, value: tree.Operation, left: int | float, right: int | float) -> int | float:
        """The result, however large. Raises Rejected after reporting E016."""
        if value.operator == "+":
            return left + right
        if value.operator == "-":
            return left - right
        if value.operator == "*":
            return left * right
        if right == 0:
            self.reject("E016", "division by zero", value.span)
        if isinstance(left, int) and isinstance(right, int):
            if left % right:
                message = f"{left} is not divisible by {right}"
                self.reject("E016", message, value.span, help="counts are whole numbers")
            return left // right
        return left / right

    def call(self, value: tree.Call) -> int:
        """function(model)"""
        function = self.functions.get(value.function.text)
        if function is None:
            help = suggestion(value.function.text, self.functions)
            message = f"unknown function `{value.function.text}`"
            self.reject("E155", message, value.function.span, help=help)
        return function(value)

    def bounded(self, number: int | float, value: tree.Value) -> int | float:
        """`number` if a file can hold it."""
        largest = LARGEST if isinstance(number, int) else sys.float_info.max
        if abs(number) > largest:
            what = "integers" if isinstance(number, int) else "numbers"
            self.reject("E016", "the number is too large", value.span, help=f"{what} end at {largest}")
        return number

    def describe(self, value: tree.Value) -> str:
        """What `value` is, for a message."""
        if isinstance(value, tree.Text):
            return f'the string "{value.value}"'
        if isinstance(value, tree.List):
            return "a list"
        if isinstance(value, tree.Block):
            return self.block
        if isinstance(value, tree.Name) and value.text == "none":
            return f"`{self.none}`"
        if isinstance(value, tree.Name | tree.Number):
            return f"`{value.text}`"
        if isinstance(value, tree.Negative) and isinstance(value.operand, tree.Number):
            return f"`-{value.operand.text}`"
        return "an expression"


def field_types(kind: type[Record], *without: str) -> dict[str, Any]:
    """Type annotation of every field of `kind` but those named."""
    return {f.name: f.type for f in msgspec.structs.fields(kind) if f.name not in without}


def missing_keys(block: tree.Block, types: Iterable[str], required: Iterable[str]) -> str:
    """The `required` keys that `block` lacks, quoted, leaving out those that were merely misspelt."""
    known = list(types)
    written = {entry.key.text for entry in block.entries}
    meant = {near for key in written - set(known) for near in difflib.get_close_matches(key, known, n=1)}
    return ", ".join(f"`{key}`" for key in required if key not in written | meant)


def join(path: str, key: str) -> str:
    """`path.key`"""
    return f"{path}.{key}" if path else key


def _place(value: tree.Value, entry: tree.Entry | None) -> Span:
    """Where to point for `value`: at the key of a block, at the first entry of a block in a list."""
    if not isinstance(value, tree.Block):
        return value.span
    if entry is not None:
        return entry.key.span
    return value.entries[0].span if value.entries else value.span

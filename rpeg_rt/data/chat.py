"""Chat templates: how a conversation is written as the text of a prompt.

A template is Jinja, with the names and settings that published ones are written for: `messages`,
`add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now` and a `tojson` that escapes
nothing. It runs in a sandbox, for it comes with a download.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from rpeg_rt.data.errors import DataError

Message = Mapping[str, Any]

JINJA, JSON = "chat_template.jinja", "chat_template.json"
_DEFAULT = "default"


class ChatError(Exception):
    """A conversation cannot be written; the message says why."""


def find_template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    """The template among a tokenizer's files, or else in its configuration; None if there is none."""
    if JINJA in files:
        return files[JINJA].decode(errors="replace")
    declared: Any = config.get("chat_template")
    if declared is None and JSON in files:
        try:
            declared = json.loads(files[JSON])["chat_template"]
        except (ValueError, KeyError, TypeError):
            declared = None
    if isinstance(declared, list):
        declared = {t.get("name"): t.get("template") for t in declared if isinstance(t, dict)}
    if isinstance(declared, dict):
        declared = declared.get(_DEFAULT)
    return declared if isinstance(declared, str) else None


def check_messages(value: Sequence[Any]) -> None:
    """Raises ChatError unless `value` is a conversation: objects with `role`, and `content` that is text if
    there is any."""
    if not value:
        raise ChatError("the conversation has no messages")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict):
            raise ChatError(f"message {number} must be an object, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ChatError(f"message {number} has no `role`, such as `user`")
        if not isinstance(message.get("content"), str | None):
            kind = type(message["content"]).__name__
            raise ChatError(f"`content` of message {number} must be a string, not {kind}")
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as exc:
        raise ChatError("it has half of a surrogate pair, which is no text") from exc


def compile_template(
    source: str, special: Mapping[str, str], where: str
) -> Callable[[Sequence[Message]], str]:
    """The function that writes a conversation up to where its answer begins, by the template `source` of
    `where`; it raises ChatError. Raises DataError where the template cannot be read."""
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as exc:
        raise DataError(f"the chat template of {where} needs the package `jinja2`: install it") from exc

    class Generation(Extension):
        """`{% generation %}` marks what an assistant says; here it says nothing more."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """Its body alone."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as exc:
        raise DataError(f"the chat template of {where} cannot be read: {exc}") from exc

    def write(messages: Sequence[Message]) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True, tools=None, **special)
        except Exception as exc:  # whatever a template does with the messages
            raise ChatError(f"the chat template of {where} refuses it: {exc}") from exc

    return write

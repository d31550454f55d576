"""How the front end words a finding: at a span, for the text at hand."""

from ir_schema.diagnostics import Diagnostic, Label, Span


def finding(
    code: str, message: str, span: Span, *, text: str = "", help: str = "", also: tuple[Label, ...] = ()
) -> Diagnostic:
    """An error at `span`, where `text` says what is wrong there; `also` are further places."""
    return Diagnostic(code=code, message=message, labels=(Label(span=span, text=text), *also), help=help)

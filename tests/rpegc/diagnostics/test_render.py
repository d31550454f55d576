"""What findings look like."""

import json

from ir_schema.diagnostics import Diagnostic, Label, Span
from rpegc.diagnostics import Source, locate, render

TEXT = "rpeg 1\n\tdata a -> b : Y\nop ñ模 : x\nlast"


def span_of(text: str) -> Span:
    start = TEXT.index(text)
    return Span(start=start, end=start + len(text))


SOURCE = Source("ppo.rpeg", TEXT, {"graph.data_edges[0]": span_of("data a -> b : Y")})

FOUND = Diagnostic(
    code="E203",
    message="a cycle",
    labels=(
        Label(path="graph.data_edges[0][2]", text="closes the cycle"),
        Label(span=span_of("last"), text="see also"),
    ),
    notes=("two\nlines",),
    help="publish it",
)


def test_full() -> None:
    assert render([FOUND], SOURCE) == (
        "error[E203]: a cycle\n"
        " --> ppo.rpeg:2:2\n"
        "  |\n"
        "2 |     data a -> b : Y\n"
        "  |     ^^^^^^^^^^^^^^^ closes the cycle\n"
        "...\n"
        "4 | last\n"
        "  | ---- see also\n"
        "  |\n"
        "  = note: two\n"
        "          lines\n"
        "  = help: publish it\n"
        "\n"
    )


def test_carets_under_wide_characters() -> None:
    found = Diagnostic(code="E1", message="m", labels=(Label(span=span_of("模")), Label(span=span_of(": x"))))
    lines = render([found], SOURCE).splitlines()
    assert lines[3:5] == ["3 | op ñ模 : x", "  |     ^^ ---"]


def test_silent_labels_that_overlap_are_drawn_once() -> None:
    twice = (Label(span=span_of("op")), Label(span=span_of("op")), Label(span=span_of("模"), text="why"))
    lines = render([Diagnostic(code="E1", message="m", labels=twice)], SOURCE).splitlines()
    assert lines[3:7] == ["3 | op ñ模 : x", "  | ^^", "  |     -- why", "  |"]


def test_what_a_terminal_would_obey_is_shown() -> None:
    source = Source("a\x07.rpeg", "ab\x1b[31m\x00\tword")
    found = Diagnostic(
        code="E1", message="no \x1b[0m", labels=(Label(span=Span(start=9, end=13), text="\x07"),)
    )
    for format in ("full", "concise"):
        assert not {"\x1b", "\x07", "\x00"} & set(render([found], source, format))
    lines = render([found], source).splitlines()
    assert lines[:2] == ["error[E1]: no \\x1b[0m", " --> a\\x07.rpeg:1:10"]
    assert lines[3].index("word") == lines[4].index("^")
    assert lines[3].startswith("1 | ab\\x1b[31m\\x00 ")


def test_without_a_place() -> None:
    found = Diagnostic(code="E9", message="m", labels=(Label(path="nowhere.at.all"),), help="h")
    assert render([found]) == "error[E9]: m\n = help: h\n\n"
    assert render([found], Source("f", "")) == "error[E9]: m\n --> f\n = help: h\n\n"
    assert render([found], SOURCE, "concise") == "ppo.rpeg: error[E9]: m\n"


def test_concise_and_github() -> None:
    assert render([FOUND], SOURCE, "concise") == "ppo.rpeg:2:2: error[E203]: a cycle\n"
    assert render([FOUND], SOURCE, "github") == (
        "::error file=ppo.rpeg,line=2,endLine=2,col=2,endColumn=17,title=E203::a cycle%0Ahelp: publish it\n"
    )


def test_json_is_one_object_a_line() -> None:
    (line,) = render([FOUND], SOURCE, "json").splitlines()
    value = json.loads(line)
    assert (value["code"], value["line"], value["column"]) == ("E203", 2, 2)
    assert value["labels"][1]["line"] == 4


def test_colour_is_only_added() -> None:
    coloured = render([FOUND], SOURCE, color=True)
    plain = coloured
    for code in ("0", "1", "1;31", "1;34"):
        plain = plain.replace(f"\033[{code}m", "")
    assert coloured != plain == render([FOUND], SOURCE)


def test_a_span_at_the_end_of_the_file() -> None:
    found = Diagnostic(code="E1", message="m", labels=(Label(span=Span(start=len(TEXT), end=len(TEXT))),))
    assert "4 | last\n  |     ^\n" in render([found], SOURCE)


def test_the_innermost_known_place_is_taken() -> None:
    places = {"graph": Span(start=0, end=1), "graph.vertices[2]": Span(start=1, end=2)}
    assert locate("graph.vertices[2].reads[7]", places) == places["graph.vertices[2]"]
    assert locate("graph.vertices[22]", places) == places["graph"]
    assert locate("plan", places) is None


def test_a_very_long_line_is_cut_around_the_place() -> None:
    text = "a" * 500 + "HERE" + "b" * 500
    source = Source("x.json", text, {"here": Span(start=500, end=504), "far": Span(start=990, end=995)})
    found = Diagnostic(code="E102", message="m", labels=(Label(path="here"), Label(path="far")))
    _, place, _, code, carets, far, *_ = render([found], source).splitlines()
    assert place == " --> x.json:1:501"
    assert max(map(len, (code, carets, far))) < 160
    assert code[carets.index("^") : carets.rindex("^") + 1] == "HERE"

"""Pipeline text: printing is the inverse of parsing, and every mistake is shown where it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir_schema.envelope import STAGES
from rpegc import registry
from rpegc.failure import UsageFailure, usage_error
from rpegc.pipeline import NAMED, Pipeline, named_pipeline, option_values, parse_pipeline
from tests.rpegc.fakes import FAKES, Plan, Spread, Tune


def load(name: str) -> type:
    if name not in FAKES:
        raise usage_error("E921", f"unknown pass `{name}`", help="did you mean `tune`?")
    return FAKES[name]


tunes = st.builds(
    Tune,
    steps=st.integers(0, 10**6),
    label=st.text(max_size=8),
    ratio=st.floats(allow_nan=False),
    strict=st.booleans(),
    limit=st.none() | st.floats(allow_nan=False),
    mode=st.sampled_from(["fast", "slow"]),
)
pipelines = st.lists(tunes | st.builds(Plan, fault=st.text(max_size=8)) | st.just(Spread()), min_size=1)


@given(pipelines)
def test_parse_inverts_print(passes: list) -> None:
    pipeline = Pipeline(tuple(passes))
    assert parse_pipeline(str(pipeline), load) == pipeline


@given(pipelines)
def test_printing_is_canonical(passes: list) -> None:
    text = str(Pipeline(tuple(passes)))
    assert str(parse_pipeline(text, load)) == text


def test_options_are_typed_and_space_is_free() -> None:
    parsed = parse_pipeline(' tune { steps = 3 , label="a b", limit=none,strict=true } ,plan', load)
    assert parsed.passes == (Tune(steps=3, label="a b", limit=None, strict=True), Plan())
    assert str(parsed) == 'tune{steps=3,label="a b",strict=true},plan'


@pytest.mark.parametrize(
    ("text", "code", "marked"),
    [
        ("", "E920", ""),
        ("tune,", "E920", ""),
        ("tune plan", "E920", "p"),
        ("tune{steps=3", "E920", ""),
        ("tune{steps}", "E920", "}"),
        ("tune,tone", "E921", "tone"),
        ("tune{step=3}", "E922", "step"),
        ("tune{steps=3,steps=4}", "E922", "steps"),
        ("tune{steps=many}", "E923", "many"),
        ("tune{steps=1.5}", "E923", "1.5"),
        ('tune{steps="3"}', "E923", '"3"'),
        ("tune{ratio=nan}", "E923", "nan"),
        ("tune{strict=yes}", "E923", "yes"),
        ("tune{mode=medium}", "E923", "medium"),
        ("plan,tune{steps=-1}", "E923", "tune{steps=-1}"),
    ],
)
def test_mistakes_are_located(text: str, code: str, marked: str) -> None:
    with pytest.raises(UsageFailure) as caught:
        parse_pipeline(text, load)
    [found] = caught.value.diagnostics
    span = found.labels[0].span
    assert span is not None
    assert (found.code, text[span.start : span.end]) == (code, marked)
    assert (caught.value.source_name, caught.value.source_text) == ("-p", text)


def test_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(UsageFailure) as caught:
        parse_pipeline("tune{step=3}", load)
    assert caught.value.diagnostics[0].help == "did you mean `steps`?"


@pytest.mark.parametrize(
    ("text", "source", "marked"),
    [
        ("tune,spread", "problem", "spread"),
        ("plan,spread", "unrolled", "plan"),
        ("spread,tune", "configuration", "tune"),
    ],
)
def test_neighbours_must_fit(text: str, source: str, marked: str) -> None:
    with pytest.raises(UsageFailure) as caught:
        parse_pipeline(text, load).check(source, None)
    [found] = caught.value.diagnostics
    span = found.labels[0].span
    assert span is not None
    assert (found.code, text[span.start : span.end]) == ("E924", marked)


def test_pipeline_must_reach_the_wanted_stage() -> None:
    pipeline = parse_pipeline("tune,plan", load)
    pipeline.check("problem", "configuration")
    with pytest.raises(UsageFailure, match="ends in stage `configuration`"):
        pipeline.check("problem", "unrolled")


def test_parts_of_a_pipeline() -> None:
    pipeline = parse_pipeline("tune,tune,plan,spread", load)
    assert str(pipeline.between("problem", "problem")) == "tune,tune"
    assert str(pipeline.between("configuration", "unrolled")) == "spread"
    assert str(pipeline.between("unrolled", "unrolled")) == ""


def test_replacing_options_of_a_pass() -> None:
    pipeline = parse_pipeline("tune{steps=3},plan", load)
    assert str(pipeline.replace_options("tune", label="y")) == "tune{steps=3,label=y},plan"
    with pytest.raises(UsageFailure, match="no pass `spread`"):
        pipeline.replace_options("spread", x=1)
    with pytest.raises(UsageFailure, match="no option `x`"):
        pipeline.replace_options("tune", x=1)


def test_every_registered_pass_prints_and_parses_back() -> None:
    assert registry.registered().keys() >= {
        "verify",
        "search",
        "unroll",
        "lower",
        "cost",
        "schedule",
        "assemble",
    }
    for name in registry.registered():
        kind = registry.load_pass(name)
        assert kind.summary
        assert parse_pipeline(name).passes == (kind(),)
        assert option_values(kind()) is not None


@pytest.mark.parametrize("name", NAMED)
def test_every_level_leads_from_problem_to_executable(name: str) -> None:
    pipeline = named_pipeline(name)
    pipeline.check("problem", "executable")
    assert parse_pipeline(str(pipeline)) == pipeline
    for stage in STAGES:
        assert pipeline.between("problem", stage).passes

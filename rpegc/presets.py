"""Presets: `use ppo { … }` and its kin stand for ops, containers and edges that a user could have written.

Nothing outside this file knows presets. An expansion is text of the language, parsed by its own parser, in
which every place is that of the `use` statement. Vertices, edges and sizes are those of semantics: Graph.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ir_schema.diagnostics import Diagnostic, Label
from rpegc.failure import suggestion
from rpegc.text import tree
from rpegc.text.convert import Converter, Rejected
from rpegc.text.findings import finding
from rpegc.text.parser import parse_statements
from rpegc.text.printer import word


@dataclass(frozen=True)
class Preset:
    """An algorithm's roles and the heads their models need (`verifier` allowed where listed), which of them
    it trains, and the algorithm the runtime applies."""

    roles: Mapping[str, tuple[str, ...]]
    trained: tuple[str, ...]
    algorithm: str


_KINDS = ("lm", "scalar", "both", "verifier")
_PPO = {"actor": ("lm",), "critic": ("scalar",), "reference": ("lm",), "reward": ("scalar", "verifier")}
_SHARED = {"actor_critic": ("both",), "reference": ("lm",), "reward": ("scalar", "verifier")}
_GROUP = {"actor": ("lm",), "reference": ("lm",), "reward": ("scalar", "verifier")}
_DPO = {"actor": ("lm",), "reference": ("lm",)}

PRESETS: Mapping[str, Preset] = {
    "ppo": Preset(_PPO, ("actor", "critic"), "ppo"),
    "ppo_shared": Preset(_SHARED, ("actor_critic",), "ppo"),
    "grpo": Preset(_GROUP, ("actor",), "grpo"),
    "rloo": Preset(_GROUP, ("actor",), "rloo"),
    "reinforce": Preset(_GROUP, ("actor",), "reinforce"),
    "dpo": Preset(_DPO, ("actor",), "dpo"),
}


def expand(file: tree.File, as_printed: bool | None = None) -> tuple[tree.File, list[Diagnostic]]:
    """`file` with every preset written out, and the algorithm entered into `run` where it was left open.

    `as_printed` chooses the printed container sizes; None takes the file's own option. A preset that cannot
    be written out stays, with a finding: E154 (unknown preset), E156 (roles), E157 (unsuited model) or
    E250 (DPO without pairs).
    """
    if as_printed is None:
        as_printed = _entry(file, "options", "as_printed") == tree.Name("true")
    problems: list[Diagnostic] = []
    statements: list[tree.Statement] = []
    algorithm = ""
    for statement in file.statements:
        if statement.keyword != "use":
            statements.append(statement)
            continue
        name = statement.words[0]
        preset = PRESETS.get(name.text)
        if preset is None:
            help = suggestion(name.text, PRESETS)
            problems.append(finding("E154", f"unknown preset `{name.text}`", name.span, help=help))
            statements.append(statement)
            continue
        found, roles = _roles(file, statement, preset)
        problems += found
        if found:
            statements.append(statement)
        else:
            statements += _written_out(statement, preset, roles, as_printed)
            algorithm = algorithm or preset.algorithm
    return replace(file, statements=tuple(_with_algorithm(s, algorithm) for s in statements)), problems


def _entry(file: tree.File, keyword: str, key: str) -> tree.Value | None:
    """The value of `key` in the first statement `keyword`."""
    bodies = (s.body for s in file.statements if s.keyword == keyword and s.body is not None)
    return next((body.get(key) for body in bodies), None)


def _constant(value: tree.Value) -> int | float | None:
    """The value of an expression; None where it is none, which is reported when the workload is read."""
    try:
        return Converter().number(value)
    except Rejected:
        return None


def _with_algorithm(statement: tree.Statement, algorithm: str) -> tree.Statement:
    """A `run` statement without algorithm gets the preset's."""
    body = statement.body
    if not algorithm or statement.keyword != "run" or body is None or body.get("algorithm") is not None:
        return statement
    entry = tree.Entry(tree.Word("algorithm", span=statement.span), tree.Name(algorithm, span=statement.span))
    return replace(statement, body=replace(body, entries=(entry, *body.entries)))


def _roles(
    file: tree.File, statement: tree.Statement, preset: Preset
) -> tuple[list[Diagnostic], dict[str, tuple[str, str]]]:
    """What is wrong with the roles of a `use` statement, and (kind, name) of each: a model's head or
    `verifier`."""
    body = statement.body or tree.Block(())
    name = f"use {statement.words[0].text}"
    found: list[Diagnostic] = []
    roles: dict[str, tuple[str, str]] = {}
    declarations = [s for s in file.statements if s.keyword in ("model", "verifier")]
    declared = {s.words[0].text: s for s in reversed(declarations)}
    for entry in body.entries:
        role, value = entry.key.text, entry.value
        if role not in preset.roles:
            message = f"`{name}` has no role `{role}`"
            found.append(finding("E156", message, entry.key.span, help=suggestion(role, preset.roles)))
            continue
        if role in roles:
            found.append(finding("E013", f"`{role}` is given twice", entry.key.span))
            continue
        text = value.text if isinstance(value, tree.Name) else ""
        text = value.value if isinstance(value, tree.Text) else text
        roles[role] = ("", text)
        if text not in declared:
            help = suggestion(text, declared)
            message = f"`{role}` names no model or verifier of this file"
            found.append(finding("E156", message, value.span, help=help))
            continue
        roles[role] = (_kind(declared[text]), text)
        found += _unsuited(name, preset, role, declared[text], value)
    missing = [role for role in preset.roles if role not in roles]
    if missing:
        message = f"`{name}` lacks {', '.join(f'`{role}`' for role in missing)}"
        help = f"write `{name} {{ {', '.join(f'{role} = ...' for role in preset.roles)} }}`"
        found.append(finding("E156", message, statement.span, help=help))
    rollouts = _entry(file, "workload", "rollouts")
    if preset.algorithm == "dpo" and rollouts is not None and _constant(rollouts) not in (2, None):
        message = "DPO learns from pairs: `rollouts` must be 2 (chosen and rejected)"
        also = (Label(span=statement.span, text="because of this"),)
        found.append(finding("E250", message, rollouts.span, help="write `rollouts = 2`", also=also))
    return found, roles


def _kind(declaration: tree.Statement) -> str:
    """`verifier`, or the head of a model."""
    return "verifier" if declaration.keyword == "verifier" else declaration.words[1].text


def _unsuited(
    name: str, preset: Preset, role: str, declaration: tree.Statement, value: tree.Value
) -> Iterable[Diagnostic]:
    """E157 if what is declared cannot play `role`."""
    kind, allowed = _kind(declaration), preset.roles[role]
    what = f"`{declaration.words[0].text}`"
    here = (Label(span=declaration.span, text="declared here"),)
    if kind in _KINDS and kind not in allowed:
        heads = " or ".join("a verifier" if a == "verifier" else f"a model with head `{a}`" for a in allowed)
        yield finding("E157", f"role `{role}` of `{name}` needs {heads}", value.span, also=here)
    trained = declaration.body is not None and declaration.body.get("trainable") == tree.Name("true")
    if role in preset.trained and not trained:
        message = f"`{name}` trains {what}, which is not trainable"
        yield finding("E157", message, value.span, also=here, help="add `trainable = true` to the model")


def _written_out(
    statement: tree.Statement, preset: Preset, roles: Mapping[str, tuple[str, str]], as_printed: bool
) -> list[tree.Statement]:
    """The statements that `statement` stands for, at its place and with its comments in front."""
    names = {role: text for role, (_, text) in roles.items()}
    verified = roles.get("reward", ("", ""))[0] == "verifier"
    source = _dpo(names, as_printed) if preset.algorithm == "dpo" else _online(names, verified, as_printed)
    first, *rest = tree.moved(parse_statements(source), statement.span)
    blank = statement.trivia.leading or ("",)
    first = replace(first, trivia=replace(first.trivia, leading=blank))
    if statement.trivia.trailing:
        first = replace(first, trivia=replace(first.trivia, leading=(*blank, statement.trivia.trailing)))
    return [first, *rest]


def _weights(model: str) -> str:
    return word(f"W_{model}")


def _containers(models: Iterable[str], actor: str, sizes: Iterable[tuple[str, str]], as_printed: bool) -> str:
    """Weights of `models`, then containers of token ids and FP32 values: 4 bytes each, or s_b as printed."""
    lines = [
        f"container {_weights(m)} {{ elements = parameters({word(m)}), "
        f"bytes_each = bytes_per_parameter({word(m)}), weights_of = {word(m)} }}"
        for m in dict.fromkeys(models)
    ]
    each = f"bytes_per_parameter({word(actor)})" if as_printed else "4"
    lines += [f"container {name} {{ elements = {size}, bytes_each = {each} }}" for name, size in sizes]
    return "\n".join(lines) + "\n"


_PROMPTS = "prompts * prompt_length"
_SEQUENCES = "prompts * rollouts * (prompt_length + response_length)"
_RESPONSES = "prompts * rollouts * response_length"


def _online(names: Mapping[str, str], verified: bool, as_printed: bool) -> str:
    """PPO, its shared form, and its kin without a critic."""
    actor = names.get("actor") or names["actor_critic"]
    critic = names.get("critic") or names.get("actor_critic")
    reference, reward = names["reference"], names["reward"]
    shared = "actor_critic" in names
    models = [actor, reference, *([] if verified else [reward]), *([critic] if critic else [])]
    sizes = [("X", _PROMPTS), ("Y", _SEQUENCES), ("logp_actor", _RESPONSES), ("logp_ref", _RESPONSES)]
    sizes += [("v", _RESPONSES)] * bool(critic) + [("r", "prompts * rollouts")]
    values = ["v"] if critic else []
    judge = f"verifier = {word(reward)}, reads = [Y]"
    if not verified:
        judge = f"model = {word(reward)}, reads = [{_weights(reward)}, Y]"
    serving = [
        ("ref_inf", f"model = {word(reference)}, reads = [{_weights(reference)}, Y]", "logp_ref"),
        ("reward_inf", judge, "r"),
    ]
    if critic:
        serving.append(("critic_inf", f"model = {word(critic)}, reads = [{_weights(critic)}, Y]", "v"))
    training = [("actor_critic_train" if shared else "actor_train", actor, ["logp_actor"])]
    if critic and not shared:
        training.append(("critic_train", critic, []))
    lines = [
        f"op actor_gen : generation {{ model = {word(actor)}, reads = [{_weights(actor)}, X], "
        "writes = [Y, logp_actor] }"
    ]
    lines += [f"op {name} : inference {{ {what}, writes = [{out}] }}" for name, what, out in serving]
    for name, model, own in training:
        reads = ", ".join([_weights(model), "Y", *own, "logp_ref", "r", *values])
        body = f"model = {word(model)}, reads = [{reads}], writes = [{_weights(model)}]"
        lines.append(f"op {name} : training {{ {body} }}")
    lines += ["", *(f"data actor_gen -> {name} : Y" for name, _, _ in serving)]
    lines += [f"data {name} -> {train} : {out}" for name, _, out in serving for train, _, _ in training]
    lines.append(f"\npublish {training[0][0]} -> actor_gen : {_weights(actor)}")
    if critic:
        lines.append(f"publish {training[-1][0]} -> critic_inf : {_weights(critic)}")
    frozen = dict.fromkeys([reference, *([] if verified else [reward])])
    lines.append(f"\ninput {', '.join(['X', *map(_weights, frozen)])}")
    return _containers(models, actor, sizes, as_printed) + "\n" + "\n".join(lines)


def _dpo(names: Mapping[str, str], as_printed: bool) -> str:
    """Offline preference pairs."""
    actor, reference = names["actor"], names["reference"]
    sizes = [("Y", _SEQUENCES), ("logp_actor", _RESPONSES), ("logp_ref", _RESPONSES)]
    w_actor, w_reference = _weights(actor), _weights(reference)
    return (
        _containers([actor, reference], actor, sizes, as_printed)
        + f"""
op ref_inf : inference {{ model = {word(reference)}, reads = [{w_reference}, Y], writes = [logp_ref] }}
op actor_inf : inference {{ model = {word(actor)}, reads = [{w_actor}, Y], writes = [logp_actor] }}
op actor_train : training {{
  model = {word(actor)}, reads = [{w_actor}, Y, logp_actor, logp_ref], writes = [{w_actor}]
}}

data ref_inf -> actor_train : logp_ref
data actor_inf -> actor_train : logp_actor

publish actor_train -> actor_inf : {w_actor}

input Y, {w_reference}
"""
    )

"""Shipped verifiers, and loading the user's."""

import queue
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import FileError, NumericError, UserCodeError
from rpeg_rt.host import VerifierPool
from rpeg_rt.verifiers import exact_match, load_verifier, numeric


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [("12", "12", 1), (" 12\n", "12", 1), ("012", "12", 0), ("", "12", 0), ("12", 12, 1)],
)
def test_exact_match(response, answer, reward):
    assert exact_match("", response, {"answer": answer}) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("so 3 and 4 make 7.", "7", 1),
        ("7 or 8", "7", 0),
        ("it is 1,234.50", 1234.5, 1),
        ("-3", "-3", 1),
        ("3", "-3", 0),
        ("no idea", "7", 0),
        ("=0.5", ".5", 1),
        ("072", "72", 1),
    ],
)
def test_numeric(response, answer, reward):
    assert numeric("", response, {"answer": answer}) == reward


def test_records_without_a_usable_answer():
    with pytest.raises(ValueError, match="no field `answer`; it has prompt"):
        numeric("", "7", {"prompt": ""})
    with pytest.raises(ValueError, match="not a number"):
        numeric("", "7", {"answer": "seven"})


@pytest.fixture
def user_module(tmp_path, monkeypatch, request):
    """Writes a module beside a problem file; gives its name."""
    name = f"user_{abs(hash(request.node.name))}"
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    sys.modules.pop(name, None)


def test_a_module_beside_the_problem(user_module, tmp_path):
    name = user_module("def verify(prompt, response, record):\n    return len(response) / 2\n")
    assert load_verifier(f"{name}:verify", tmp_path)("", "abc", {}) == 1.5


def test_shipped_names(tmp_path):
    assert load_verifier("numeric", tmp_path) is numeric
    with pytest.raises(FileError, match=r"no verifier `nope`.*`exact_match`, `numeric`"):
        load_verifier("nope", tmp_path)


def test_what_cannot_be_loaded(user_module, tmp_path):
    name = user_module("x = 1\n")
    with pytest.raises(FileError, match="no function `verify`"):
        load_verifier(f"{name}:verify", tmp_path)
    with pytest.raises(FileError, match="no function `x`"):
        load_verifier(f"{name}:x", tmp_path)
    with pytest.raises(FileError, match="no module `absent_module`"):
        load_verifier("absent_module:verify", tmp_path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import absent_dependency\n", "absent_dependency"),
        ("1 / 0\n", "ZeroDivision"),
        ("def (", "SyntaxError: "),
        ("if True:\nx = 1\n", "IndentationError: "),
    ],
)
def test_a_module_that_fails_to_import(user_module, tmp_path, text, what):
    name = user_module("x = 1\n" + text)
    line = 3 if text.startswith("if") else 2
    with pytest.raises(UserCodeError, match=rf"cannot be imported: .*{what}.* \(.*/{name}\.py:{line}\)"):
        load_verifier(f"{name}:verify", tmp_path)


@pytest.mark.parametrize("reward", [0.5, True, 2, Fraction(1, 4), np.float32(0.5), torch.tensor(0.5)])
def test_rewards_are_numbers_of_any_kind(reward):
    assert rewarded(lambda: reward).rewards.tolist() == [float(reward)]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: "0.5", UserCodeError, "TypeError: it returned '0.5', which is a str and no number"),
        (lambda: None, UserCodeError, "it returned None, which is a NoneType"),
        (lambda: 1 / 0, UserCodeError, r"ZeroDivisionError: .* \(.*test_verifiers.py:\d+\)"),
        (lambda: sys.exit(3), UserCodeError, "SystemExit: 3"),
        (lambda: float("nan"), NumericError, "gave nan to response 7 of step 4"),
        (lambda: float("inf"), NumericError, "gave inf"),
    ],
)
def test_what_is_no_reward_is_told(call, kind, words):
    error = rewarded(call).error
    assert type(error) is kind
    assert re.search(words, str(error))
    assert "`judge`" in str(error)


def rewarded(call):
    """What a pool of one verifier makes of one response."""
    found = queue.SimpleQueue()
    VerifierPool("judge", 1, found.put).submit(Instance(3, 4), np.array([7]), [call])
    return found.get(timeout=30)

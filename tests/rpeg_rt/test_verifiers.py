"""Shipped verifiers, loading the user's, and judging in processes of their own."""

import errno
import os
import queue
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from ir_schema.problem import Verifier
from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import FileError, NumericError, UserCodeError
from rpeg_rt.judge import Question
from rpeg_rt.pool import VerifierPool
from rpeg_rt.verifiers import as_reward, exact_match, load_verifier, math, numeric


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
        ("3,000,000", 3000000, 1),
        ("1,2", "2", 1),
        ("1,2345", "2345", 1),
        ("10-3", "3", 1),
        ("= −3", "-3", 1),
        ("1.5e3", "1500", 1),
        ("2E-1", "0.2", 1),
        ("1e999999999", "7", 0),
        ("9" * 5000, "7", 0),
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


def test_mathematics():
    pytest.importorskip("math_verify")
    assert math("", r"so it is $\frac{1}{2}$", {"answer": "0.5"}) == 1
    assert math("", r"\boxed{2x + 2}", {"answer": "$2(x+1)$"}) == 1
    assert math("", "the answer is 7", {"answer": 7}) == 1
    assert math("", "the answer is 8", {"answer": "7"}) == 0
    assert math("", "no idea", {"answer": "7"}) == 0


def test_an_installed_package_offers_a_verifier(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    info = tmp_path / "offer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rpeg_rt.verifiers]\nhalf = offer_verifiers:half\nodd = nothing_x:f\n"
    )
    (tmp_path / "offer_verifiers.py").write_text("def half(p, r, record):\n    return 0.5\n")
    assert load_verifier("half", tmp_path)("", "", {}) == 0.5
    with pytest.raises(UserCodeError, match="verifier `odd` cannot be imported"):
        load_verifier("odd", tmp_path)
    with pytest.raises(FileError, match="`math`, `half`, `odd`"):
        load_verifier("nope", tmp_path)


MODULE = """
import os, sys, time
from fractions import Fraction
import numpy as np

def verify(prompt, response, record):
    print("noise")
    return eval(response)

def fail():
    return 1 / 0

def loop(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return 0.0
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Has responses, which are Python expressions, judged; gives the outcome and the warnings."""
    directory = tmp_path_factory.mktemp("judge")
    (directory / "judging_module.py").write_text(MODULE)

    def run(*responses, on_error="error", workers=1, timeout=60.0):
        found, warnings = queue.SimpleQueue(), []
        spec = Verifier(
            seconds_per_response=1e-3,
            workers=workers,
            callable="judging_module:verify",
            on_error=on_error,
            timeout_seconds=timeout,
        )
        pool = VerifierPool("judge", spec, directory, found.put, warnings.append)
        questions = [Question("p", r, {}) for r in responses]
        pool.submit(Instance(3, 4), np.arange(7, 7 + len(responses)), questions)
        try:
            return found.get(timeout=60), warnings
        finally:
            pool.close()

    return run


def test_rewards_are_numbers_of_any_kind(judged):
    kinds = ["0.5", "True", "2", "Fraction(1, 4)", "np.float32(0.5)"]
    verified, _ = judged(*kinds)
    assert verified.rewards.tolist() == [0.5, 1, 2, 0.25, 0.5]
    assert as_reward(torch.tensor(0.5)) == 0.5


def test_many_responses_by_many_processes(judged):
    verified, _ = judged(*[f"len({'x' * (i % 50)!r}) / 4" for i in range(300)], workers=3)
    assert verified.rewards.tolist() == [i % 50 / 4 for i in range(300)]


def test_responses_larger_than_a_pipe(judged):
    verified, _ = judged(*["len('" + "x" * 200_000 + "')"] * 3)
    assert verified.rewards.tolist() == [200_000] * 3


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        ("'0.5'", UserCodeError, "TypeError: it returned '0.5', which is a str and no number"),
        ("None", UserCodeError, "it returned None, which is a NoneType"),
        (
            "fail()",
            UserCodeError,
            r"on response 7 of step 4: ZeroDivisionError: .* \(.*judging_module.py:\d+\)",
        ),
        ("sys.exit(3)", UserCodeError, "SystemExit: 3"),
        ("os._exit(3)", UserCodeError, "its process ended with code 3"),
        ("os.kill(os.getpid(), 9)", UserCodeError, "its process ended by signal 9"),
        ("float('nan')", NumericError, "gave nan to response 7 of step 4"),
        ("float('inf')", NumericError, "gave inf"),
    ],
)
def test_what_is_no_reward_is_told(judged, response, kind, words):
    verified, _ = judged(response)
    assert type(verified.error) is kind
    assert re.search(words, str(verified.error))
    assert "`judge`" in str(verified.error)


def test_a_verifier_that_hangs_is_ended(judged):
    verified, _ = judged("1.0", "loop(1000)", "1.0", timeout=0.5)
    assert "failed on response 8 of step 4: it did not answer within 0.5 s" in str(verified.error)


def test_failures_earn_nothing_where_the_file_says_so(judged):
    responses = ["1.0", "1 / 0", "2.0", "os._exit(3)", "float('nan')", "loop(1000)", "3.0"]
    verified, warnings = judged(*responses, on_error="zero", timeout=0.5)
    assert verified.error is None
    assert verified.rewards.tolist() == [1, 0, 2, 0, 0, 0, 3]
    (warning,) = warnings
    assert "ZeroDivisionError" in warning
    assert warning.endswith("such responses earn 0")


def test_a_system_that_has_no_more_processes_is_told_and_not_waited_for(judged, monkeypatch):
    """The first process is there, and ends; there is no other to take its place."""
    popen, left = subprocess.Popen, iter([True])

    def scarce(*arguments, **options):
        if next(left, False):
            return popen(*arguments, **options)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("rpeg_rt.judge.subprocess.Popen", scarce)
    verified, (warning,) = judged("os._exit(3)", "1.0", on_error="zero")
    assert verified.rewards.tolist() == [0, 0]
    assert "code 3" in warning
    with pytest.raises(UserCodeError, match="gets no process: Resource temporarily unavailable"):
        judged("1.0")


def test_a_verifier_that_cannot_be_loaded(tmp_path):
    def pool(name):
        spec = Verifier(seconds_per_response=0.0, callable=name)
        VerifierPool("judge", spec, tmp_path, print, print)

    (tmp_path / "broken_judge.py").write_text("1 / 0\n")
    (tmp_path / "dying_judge.py").write_text("import os\nos._exit(9)\n")
    with pytest.raises(FileError, match="no module `absent_judge`"):
        pool("absent_judge:verify")
    with pytest.raises(UserCodeError, match=r"cannot be imported: ZeroDivisionError.*broken_judge.py:1"):
        pool("broken_judge:verify")
    with pytest.raises(UserCodeError, match="`dying_judge:verify` its process ended with code 9"):
        pool("dying_judge:verify")

"""Whether a trace shows the execution of its plan: every rule of the semantics, Runtime.

A violation names the nodes and times. A run that ended early is held to the same rules as far as it went.
"""

from collections.abc import Iterable
from pathlib import Path

from ir_schema.trace import (
    VERSION,
    BrokenTraceError,
    Complete,
    Dispatch,
    Evaluation,
    Footer,
    Header,
    Line,
    Snapshot,
    Stopping,
)
from rpeg_rt.beginning import Beginning
from rpeg_rt.failure import FileError, VerificationError
from rpeg_rt.findings import Verdict
from rpeg_rt.load import BrokenPlanError, Plan, load_plan
from rpeg_rt.ranges import implausible
from rpeg_rt.realise import Realisation
from rpeg_rt.semantics import NotUnderstood
from rpeg_rt.template import UnrealisableError
from rpeg_rt.trace import read_trace
from rpeg_rt.trace_rules import TraceRules

MOST_VIOLATIONS = 20


def verify_trace(plan: Plan, events: Iterable[Line]) -> Verdict:
    """Check the events of a trace against `plan`."""
    verdict = Verdict(plan=plan.id)
    try:
        _check(plan, events, verdict)
    except BrokenTraceError as exc:
        verdict.violations.append(f"integrity: {exc}")
    except (UnrealisableError, NotUnderstood) as exc:
        verdict.violations.append(f"plan: this runtime cannot have executed it: {exc}")
    return verdict


def _check(plan: Plan, events: Iterable[Line], verdict: Verdict) -> None:
    lines = iter(events)
    header = next(lines, None)
    if not isinstance(header, Header) or header.version != VERSION:
        verdict.violations.append("integrity: the trace does not begin with a header that this release reads")
        return
    if header.plan != plan.id:
        verdict.violations.append(f"plan: the trace is of plan {header.plan}, not of {plan.id}")
        return
    if wrong := implausible(plan.executable):
        verdict.violations.append(f"plan: this runtime cannot have executed it: {'; '.join(wrong)}")
        return
    realisation = Realisation(plan.executable, Beginning(header.first, header.oldest))
    if header.workers != dict(enumerate(realisation.devices)):
        verdict.violations.append(
            f"binding: workers were on GPUs {header.workers}, planned: {realisation.devices}"
        )
        return
    run = plan.executable.problem.run
    if run is None or header.precision != run.precision:
        verdict.violations.append(
            f"plan: the run was in {header.precision}, which is not the plan's precision"
        )
    rules = TraceRules(realisation, header, verdict)
    footer: Footer | None = None
    for line in lines:
        if footer is not None or isinstance(line, Header):
            verdict.violations.append("integrity: a line stands after the footer, or a second header")
            return
        if isinstance(line, Dispatch):
            rules.dispatch(line)
        elif isinstance(line, Complete):
            rules.complete(line)
        elif isinstance(line, Evaluation):
            rules.evaluation(line)
        elif isinstance(line, Stopping):
            rules.stop(line)
        elif isinstance(line, Snapshot):
            rules.snapshot(line)
        else:
            footer = line
        if len(verdict.violations) >= MOST_VIOLATIONS:
            verdict.violations.append("… and perhaps more; stopped here")
            return
    rules.end(footer)


def verify_file(trace: Path, plan: Path) -> Verdict:
    """Check the trace in a file against the plan in a file.

    Raises FileError if one cannot be read or is something else, VerificationError if the plan is not intact.
    """
    try:
        loaded = load_plan(plan)
        return verify_trace(loaded, read_trace(trace))
    except BrokenPlanError as exc:
        raise VerificationError([f"plan: {exc}"]) from exc
    except FileError as exc:
        raise FileError(f"{exc} (the order is `rpeg-rt verify TRACE PLAN`)") from exc

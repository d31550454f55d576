"""The catalogue of codes, read from `catalogue.toml` when somebody asks for an explanation."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Explanation:
    """What a code means: a title, the reason behind the rule, an example that breaks it, and the way out."""

    code: str
    title: str
    why: str
    fix: str
    wrong: str = ""

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.title}", self.why]
        if self.wrong:
            parts += ["For example:", _indented(self.wrong)]
        parts += ["Instead:" if self.wrong else "What to do:", _indented(self.fix)]
        return "\n\n".join(parts)


def read_catalogue() -> dict[str, Explanation]:
    """Every code with its explanation."""
    text = (resources.files("rpegc.diagnostics") / "catalogue.toml").read_text(encoding="utf-8")
    return {code: Explanation(code=code, **entry) for code, entry in tomllib.loads(text).items()}


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines())

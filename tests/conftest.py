"""`--bless`: rewrite the goldens instead of comparing with them."""

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the files under golden/")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--bless") and os.environ.get("CI"):
        raise pytest.UsageError("--bless is refused under CI: bless where the changes can be reviewed")

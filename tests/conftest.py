"""What all tests share, and `--quick`, which leaves out all that needs more than this process."""

from __future__ import annotations

import multiprocessing.process
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from tyro._parsers import ParserSpecification

from drlhp.runtime.start import LARGE_LIBRARIES
from envs import moving_dot

# A process has one display: a window that opens in it goes to the display of the first window.
from tests.support.display import display
from tests.support.postgres import postgres, shared_postgres, store_kind

__all__ = ["display", "postgres", "shared_postgres", "store_kind"]  # fixtures: pytest finds them by name

# The tests' own arithmetic is tiny: one thread is faster than two that wait for each other on a busy machine.
torch.set_num_threads(1)
# What a test starts from this process comes from one server, which can import our own modules for all of it too.
LARGE_LIBRARIES.extend(["a2c.worker", "drlhp.training.trainer", "pref_interface"])


def described_once(describe: Callable[..., ParserSpecification]) -> Callable[..., ParserSpecification]:
    """What tyro derives from the fields of a command's settings and their defaults, which it does for each line.

    It reads the source for that, and takes a tenth of a second; a test's process reads hundreds of lines.
    """
    found = dict[Any, ParserSpecification]()

    def described(settings: Any, **rest: Any) -> ParserSpecification:
        if rest["parent_classes"]:  # a part of other settings
            return describe(settings, **rest)
        key = settings, repr(rest)  # 1 and 1.0 are equal, and no defaults of the same kind
        if key not in found:
            found[key] = describe(settings, **rest)
        return found[key]

    return described


ParserSpecification.from_callable_or_type = staticmethod(  # type: ignore[method-assign]
    described_once(ParserSpecification.from_callable_or_type)
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip slow tests, and those that start a process or a window")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts slow tests first, or skips them with `--quick`.

    Then any other skips itself as soon as it starts a process: a browser and X are some too.
    """
    if hasattr(config, "workerinput"):  # the longest first, so that none is alone at the end
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    starts_workers = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if not config.getoption("--quick") or starts_workers:
        return
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("window"):
            item.add_marker(pytest.mark.skip("is not quick"))
    for kind, method in ((subprocess.Popen, "__init__"), (multiprocessing.process.BaseProcess, "start")):
        setattr(kind, method, skip)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Starts each test from the same random numbers, whatever ran before it: a failure can be seen again."""
    random.seed(0)
    np.random.seed(0)  # environments of other people draw from it
    # Not torch.manual_seed, which also notes three times where it was called: over a millisecond for each test.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def short_episodes(monkeypatch: pytest.MonkeyPatch) -> int:
    """The agent steps of the moving dot's episodes in this process, which take milliseconds each."""
    steps = 60
    frames = steps * moving_dot.MOVING_DOT.frame_skip
    monkeypatch.setattr(moving_dot, "MOVING_DOT", replace(moving_dot.MOVING_DOT, max_episode_frames=frames))
    return steps


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 server with a bucket named clips."""
    from tests.support.s3 import serving_s3  # whose imports take a while

    with serving_s3(monkeypatch) as server:
        yield server


def skip(*_: Any, **__: Any) -> NoReturn:
    pytest.skip("starts a process")

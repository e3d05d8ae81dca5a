"""What the tests of several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.report import figures
from tests.support.commands import DOT, SYNC, TINY, here


@pytest.fixture(autouse=True, scope="session")
def coarse_figures() -> Iterator[None]:
    """No test looks at how fine they are, and drawing them takes most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "DPI", 40)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of all parts, with 20 labels: to read, and to copy for what writes to it."""
    log_dir = tmp_path_factory.mktemp("runs")
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *TINY, SYNC)
    here(log_dir, *words, "--million_timesteps", "0.0006")
    return log_dir / "a"

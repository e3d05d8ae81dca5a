"""The browser and the server of the tests that use the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import browser
from tests.support.labelling import Server, make_store, running

__all__ = ["browser"]  # a fixture: pytest finds it by name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of 12 pairs, whose task would do harm as HTML."""
    make_store(tmp_path, 12, {"task": "Keep to the <img src=x onerror=document.title='run'> left"})
    with running(tmp_path) as found:
        yield found

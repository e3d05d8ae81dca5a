"""One server of processes for all tests of a worker."""

import pytest

from drlhp.runtime import channels
from drlhp.runtime.start import Context, start_context


@pytest.fixture
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes that a wrapper in this process would spawn come from one server, which imports PyTorch once.

    How they are spawned is tested with programs.
    """

    def from_the_server(method: str | None = None) -> Context:
        return start_context(None if method == "spawn" else method)

    monkeypatch.setattr(channels, "start_context", from_the_server)

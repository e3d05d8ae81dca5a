"""One server of processes for all tests of a worker."""

import pytest

from drlhp.runtime import channels
from drlhp.runtime.start import Context, start_context


@pytest.fixture
def one_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes that a wrapper in this process would spawn come from one server, which imports PyTorch once.

    How they are spawned is tested with programs, and with windows, for which the server has no display.
    """
    if request.node.get_closest_marker("window"):
        return

    def from_the_server(method: str | None = None) -> Context:
        return start_context(None if method == "spawn" else method)

    monkeypatch.setattr(channels, "start_context", from_the_server)

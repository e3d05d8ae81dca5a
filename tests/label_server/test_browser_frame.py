"""The page in a frame of another page of this machine, as in a notebook: only where that is allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame

from tests.support.browser import NEEDS_BROWSER, POLL_MS, WAIT_MS, rows
from tests.support.labelling import Server, make_store, running

pytestmark = NEEDS_BROWSER


@contextmanager
def page_around(link: str) -> Iterator[str]:
    """Serves a page with this link in a frame, at a port of its own; yields its address."""

    class Around(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<iframe src="{link}" width="1200" height="800"></iframe>'.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    around = ThreadingHTTPServer(("127.0.0.1", 0), Around)
    thread = threading.Thread(target=around.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://localhost:{around.server_port}/"
    finally:
        around.shutdown()
        around.server_close()
        thread.join()


@contextmanager
def frame_of(browser: Browser, server: Server) -> Iterator[Frame]:
    """The frame with the labelling page, in another page of this machine."""
    link = f"http://localhost:{server.address.port}/#t={server.token}&n=me"
    with page_around(link) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)  # until the frame has loaded too
        try:
            yield page.frames[1]
        finally:
            context.close()


def test_a_frame_of_this_machine_takes_answers_if_the_page_may_stand_in_one(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    with running(tmp_path, framed=True) as server, frame_of(browser, server) as frame:
        for _ in range(WAIT_MS // POLL_MS):
            if frame.evaluate("document.querySelector('#stage')?.dataset.pair ?? ''"):
                frame.locator("#status").click()  # as a person clicks into the frame, so that it gets the keys
                frame.page.keyboard.press("l")
            if rows(server):
                break
            frame.page.wait_for_timeout(POLL_MS)
        assert rows(server)[0].labeller == "me"


def test_no_page_shows_it_in_a_frame_otherwise(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    with running(tmp_path) as server, frame_of(browser, server) as frame:
        assert frame.url.startswith("chrome-error:")


@pytest.mark.parametrize("framed", [True, False])
def test_the_header_names_this_machine_alone(framed: bool, tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path, framed=framed) as server:
        policy = server.client("ann").request("GET", "/")[2]["Content-Security-Policy"]
    allowed = "http://localhost:* http://127.0.0.1:*;" if framed else "'none';"
    assert f"frame-ancestors {allowed}" in policy and "default-src 'self'" in policy

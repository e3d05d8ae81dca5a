"""The labelling page of a run. Its server is a child process; if it dies, the run goes on and starts it again."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from drlhp.data.views import shown
from drlhp.errors import PrefDBError
from drlhp.label_server import (
    DEFAULT_PORT,
    is_loopback,
    launch,
    listen,
    port_before,
    prepare,
    stop,
)
from drlhp.label_server.config import PageConfig
from drlhp.label_server.status import EPISODE
from drlhp.labelling.answers import LABELLER
from drlhp.labelling.gatherers import QueueGatherer
from drlhp.labelling.notices import Who
from drlhp.pictures import write_video
from drlhp.runtime.channels import Episode
from pref_db import PrefDB

log = logging.getLogger("run")

RESTART_SECONDS = 1.0  # Wait before the first restart. It doubles with each further one, up to a minute.
STEADY_SECONDS = 60.0  # After a server that ran this long, the wait starts at one second again.
EPISODE_SECONDS = 60.0  # Least time between two films, because each film takes some time of one core.
# Pixels of a film's short side. The page enlarges it, and MP4 stores colours at only half the resolution.
EPISODE_SIDE = 168


class PageServer:
    """Starts and restarts the server's process, and keeps its port, so that no other program takes it meanwhile."""

    def __init__(self, db_path: Path, run_dir: Path, config: PageConfig, labeller: str, before: int | None) -> None:
        """Starts the server, if it can at the port before. Raises UserError if the port is taken."""
        self._socket = listen(config.web_host, config.web_port, before)
        self._arguments = (db_path, run_dir, self._socket, labeller, config.web_origin, config.web_framed)
        self._delay = RESTART_SECONDS
        try:
            self.address, token = prepare(run_dir, self._socket)
            self.link = self.address.link(token, config.web_origin)
            self._start()
        except BaseException:
            self._socket.close()
            raise

    def _start(self) -> None:
        self.process = launch(*self._arguments)
        self._started = time.monotonic()

    def check(self) -> None:
        """Starts the server again if it has died. Nothing is lost, because its data is in the store."""
        if self.process.poll() is None:
            return
        lived = time.monotonic() - self._started
        if lived > STEADY_SECONDS:
            self._delay = RESTART_SECONDS
        if lived < self._delay:
            return
        self._delay = min(2 * self._delay, STEADY_SECONDS)
        stop(self.process)
        log.warning("the label server ended with %s; it is started again", self.process.returncode)
        self._start()

    def close(self) -> None:
        """Ends the server; may be called twice."""
        stop(self.process)
        self._socket.close()


class WebGatherer(QueueGatherer):
    """Asks the people on the page.

    Args:
        labeller: the name of the labeller on this machine, until they take another.
        trouble: what does not work in the run; empty if all works.
    """

    def __init__(
        self,
        db: PrefDB,
        run_dir: Path,
        config: PageConfig,
        who: Who = "run",
        labeller: str = LABELLER,
        trouble: str = "",
    ) -> None:
        """Starts the server, which reads its settings from the store, and prints the link.

        Raises UserError if the port is taken.
        """
        super().__init__(db, who)
        self.line = ""  # the page's line about the progress of the run
        self.trouble = trouble
        self._ended = False
        self._since, self._trouble = time.time(), ""  # the last failure that the server reported since then
        before = port_before(run_dir)
        self.server = PageServer(db.path, run_dir, config, labeller, before)
        port = self.server.address.port
        if config.web_port is None and port not in (DEFAULT_PORT, before):
            print(f"Port {DEFAULT_PORT} is taken, so this page has port {port}; --web_port gives it another.")
        print(f"Label in a browser: {self.server.link}", flush=True)
        if config.web_origin:
            return  # With a proxy the link works everywhere, and the connection is encrypted.
        if is_loopback(config.web_host):
            print(
                f"On another computer: {self.server.address.tunnel()}  and then open the same link there.", flush=True
            )
        else:
            print("Whoever has this link can answer, and the connection is not encrypted.", flush=True)

    def drain(self) -> list[Any]:
        self.server.check()
        return super().drain()

    def _news(self, status: str) -> dict[str, Any]:
        at, server = self.queue.notices.heartbeats().get("server", (0.0, {}))
        trouble = server.get("trouble", "") if at > self._since else ""
        if trouble and trouble != self._trouble:
            log.warning("the label server says: %s", trouble)
            self._trouble = trouble
        return {"line": self.line or status, "trouble": self.trouble}

    def fail(self, why: str) -> None:
        """Shows the labellers that the run has stopped, and why."""
        why = why.removesuffix(".")
        self.trouble = f"the run has stopped ({why}); answers are kept"
        self._end(f"The run has stopped ({why}). Every answer is kept.")

    def close(self) -> None:
        self._end("Labelling has ended here. Every answer is kept; you may close this page.")
        self.server.close()

    def _end(self, word: str) -> None:
        """Shows on every page, once, why no more pairs will come."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(PrefDBError):  # The store itself may have failed.
            self.queue.notices.beat(self.who, {"status": word, "line": word, "trouble": self.trouble, "ended": word})


class EpisodeFile:
    """Writes the last full episode as a film for the page, at most one a minute, without blocking the run."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EPISODE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self.trouble = ""

    def offer(self, episode: Episode) -> None:
        """Takes an episode, unless the last one was written just now or is being written."""
        if time.monotonic() < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = time.monotonic() + EPISODE_SECONDS
        self._thread = threading.Thread(target=self._write, args=(episode,), daemon=True, name="episode")
        self._thread.start()

    def _write(self, episode: Episode) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # On Linux this changes the thread alone.
        try:
            frames = (shown(data, episode.env_id)[0] for data in episode.frames)
            write_video(self._path, frames, episode.fps, side=EPISODE_SIDE)
            self.trouble = ""
        except Exception as error:  # Whatever fails here must not end the run.
            self.trouble = f"the last episode was not written: {error}"
            log.warning("%s", self.trouble)

    def close(self) -> None:
        """Waits until the film that is being written is done."""
        if self._thread is not None:
            self._thread.join()

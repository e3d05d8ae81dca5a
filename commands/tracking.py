"""Sends a run's curves to an experiment tracker while the run goes on."""

from __future__ import annotations

import logging
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands.trackers import Outcome, Point, RunFacts, Track, open_tracker, release
from drlhp.errors import reason_of

log = logging.getLogger("run")

LOOK_SECONDS = 10.0  # between two looks at the files, which TensorBoard's writer fills every two minutes
END_SECONDS = 60.0  # for the tracker to take what is left when the run ends


class Tracking:
    """Follows the files of TensorBoard's curves, which all parts of a run write, in a thread of its own.

    So the tracker gets what TensorBoard gets, no part waits for it, and one that fails does not end the run. Points
    that a run wrote before it was resumed are not sent again.

    Args:
        say: is told in a sentence where the curves are, and what fails.
    """

    def __init__(
        self, name: Track, folder: Path, run_id: str, settings: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self._name, self._folder, self._say = name, folder, say
        self._facts = RunFacts(run_id or folder.name, folder, settings, shlex.join(sys.argv))
        self._old = self._files()
        self._loaders: dict[Path, Any] = {}  # each reads on where it stopped
        self._over, self._left = threading.Event(), False
        self._outcome: Outcome = "finished"
        self._thread = threading.Thread(target=self._follow, daemon=True, name="tracking")
        self._thread.start()

    def _files(self) -> set[Path]:
        return set((self._folder / "events").glob("*/events.out.tfevents.*"))

    def _follow(self) -> None:
        try:
            tracker = open_tracker(self._name, self._facts)
            self._say(f"Tracked by {self._name}: {tracker.where}.")
            while not self._over.wait(LOOK_SECONDS):
                tracker.add(self._new_points())
            tracker.add(self._new_points())
            tracker.close(self._outcome)
        except Exception as error:
            log.warning("tracking", exc_info=True)
            if self._left:
                return
            self._say(
                f"The run is no longer tracked by {self._name} ({reason_of(error)}); it goes on, and all curves are in "
                f"{self._folder / 'events'}."
            )
        finally:
            release(self._name)

    def _new_points(self) -> list[Point]:
        """Returns the points that were written since the last call."""
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader  # slow to import

        points = []
        for path in sorted(self._files() - self._old):
            if path not in self._loaders:
                self._loaders[path] = LegacyEventFileLoader(str(path))
            for event in self._loaders[path].Load():
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        points.append(Point(value.tag, value.simple_value, event.step, event.wall_time))
        return points

    def close(self, outcome: Outcome) -> None:
        """Sends what is left, for a minute at most; may be called twice, of which the first counts."""
        if self._over.is_set():
            return
        self._outcome = outcome
        self._over.set()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._left = True
            threading.Thread(
                target=release, args=(self._name,), daemon=True, name="tracking end"
            ).start()  # it may hang as well
            self._say(
                f"{self._name} has not answered for {END_SECONDS:.0f} seconds, so the end of the curves is only in "
                f"{self._folder / 'events'}."
            )

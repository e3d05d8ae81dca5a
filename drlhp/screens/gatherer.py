"""Asks the person at this screen."""

from __future__ import annotations

import contextlib
from typing import Any

from drlhp.errors import PrefDBError
from drlhp.labelling.answers import LABELLER
from drlhp.labelling.gatherers import Answered, PreferenceGatherer, QueueGatherer
from drlhp.labelling.notices import Who
from drlhp.screens.opening import Ui, open_screen
from drlhp.screens.person import Person
from drlhp.screens.screen import Presses, Screen
from pref_db import PrefDB

PERSON_AHEAD = 3  # pairs in the queue: few, so that clips are recent when the person sees them


class PersonGatherer(QueueGatherer):
    """Asks one person at this screen; other people may answer from elsewhere."""

    ahead = PERSON_AHEAD

    def __init__(
        self,
        db: PrefDB,
        screen: Screen,
        presses: Presses | None = None,
        labeller: str = LABELLER,
        who: Who = "run",
    ) -> None:
        super().__init__(db, who)
        self.person = Person(self.queue, screen, presses, labeller)
        self._helped = False

    @property
    def ended(self) -> bool:
        return self.person.ended and not self._helped

    def drain(self) -> list[Answered]:
        self.person.step()
        return super().drain()

    def tell(self, status: str, state: dict[str, Any]) -> None:
        self._look()  # the person may have found pairs that cannot be shown
        super().tell(status, state)
        # If the person has left, somebody else may answer the run's questions through `label`.
        self._helped = self.person.ended and self.who == "run" and self.queue.notices.goes_on("label")
        self.person.status = status
        self.person.before_training = state.get("labels", 0) < state.get("initial_labels", 0)
        self.person.labels_left = max(0, (state.get("goal") or 0) - state.get("labels", 0))

    def announce(self, text: str) -> None:
        self.person.tell(text)

    def _news(self, status: str) -> dict[str, Any]:
        return {**super()._news(status), "labellers": [] if self.person.ended else [self.person.labeller]}

    def close(self) -> None:
        self.person.close()
        with contextlib.suppress(PrefDBError):  # perhaps the store has failed
            self.queue.notices.beat(self.who, {"status": self._told, "labellers": []})


def gatherer_for(ui: Ui, db: PrefDB, labeller: str = LABELLER, who: Who = "run") -> PreferenceGatherer:
    """Returns the gatherer that asks the person at this screen. Raises DisplayError."""
    return PersonGatherer(db, *open_screen(ui), labeller, who)

"""The flags and notes of pairs that have no answer yet."""

from __future__ import annotations

import contextlib
import json

from drlhp.labelling.notices import Notices

Mark = tuple[bool, str]  # whether the pair is flagged, and the note about it
NONE: Mark = (False, "")


class Marks:
    """A labeller's marks, which wait in the store until the pair is answered, also over a restart."""

    def __init__(self, notices: Notices, labeller: str) -> None:
        self._notices, self._labeller = notices, labeller

    def of(self, comparison_id: str) -> Mark:
        """Returns the mark of a pair; that of no flag and no note if there is none."""
        with contextlib.suppress(ValueError, TypeError):  # what somebody else has written there is no mark
            flag, note = json.loads(self._notices.setting(self._key(comparison_id)) or "")
            return bool(flag), str(note)
        return NONE

    def keep(self, comparison_id: str, mark: Mark) -> None:
        """Stores the mark of a pair, or that it has none."""
        if mark != self.of(comparison_id):
            self._notices.set_setting(self._key(comparison_id), "" if mark == NONE else json.dumps(mark))

    def _key(self, comparison_id: str) -> str:
        return f"mark of {self._labeller}: {comparison_id}"

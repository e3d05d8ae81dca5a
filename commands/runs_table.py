"""One live table of all runs of a command; lines at intervals if the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from commands.progress import is_terminal

PLAIN_SECONDS = 10.0  # between a run's lines, if the output is no terminal
WAITS = "waits for a node"


class RunsTable:
    """Shows where each run is carried out, and its newest line; runs that have ended are no longer in it.

    Args:
        names: of the runs, in the order in which they are shown.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.rows = dict.fromkeys(names, ("", WAITS))
        self._n_runs, self._printed = len(self.rows), dict[str, tuple[float, str]]()
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if is_terminal() else None
        if self._live:
            self._live.start()

    def say(self, sentence: str) -> None:
        """Prints a sentence above the table."""
        if self._live:
            self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        else:
            print(sentence, flush=True)

    def end(self, name: str, sentence: str) -> None:
        """Takes a run out, and says how it has ended."""
        self.rows.pop(name, None)
        self.say(f"{name}: {sentence}")

    def show(self, latest: dict[str, tuple[str, str]]) -> None:
        """Takes the node and the newest line of runs, and draws the table."""
        self.rows |= {name: latest[name] for name in self.rows if name in latest}
        if self._live:
            self._live.update(self._table(), refresh=True)
            return
        for name, (node, line) in self.rows.items():
            at, before = self._printed.get(name, (0.0, ""))
            if line != before and time.monotonic() - at >= PLAIN_SECONDS:
                self._printed[name] = time.monotonic(), line
                print(f"{name}: {line}" + (f" [{node}]" if node else ""), flush=True)

    def _table(self) -> Table:
        """Returns as many runs as the terminal has lines for, first those that are carried out."""
        table = Table("run", "node", "", box=None, pad_edge=False, title_justify="left")
        table.columns[2].no_wrap, table.columns[2].ratio = True, 1
        table.columns[2].overflow = "ellipsis"
        rows = sorted(self.rows.items(), key=lambda row: row[1][1] == WAITS)
        room = max(1, self._console.height - 3)
        for name, (node, line) in rows[:room]:
            table.add_row(Text(name), Text(node), Text(line))
        n_wait, n_ended = sum(line == WAITS for _, line in self.rows.values()), self._n_runs - len(self.rows)
        more = f", {len(rows) - room} more not shown" if len(rows) > room else ""
        table.caption = f"{n_ended} of {self._n_runs} have ended, {n_wait} wait for a node{more}"
        table.caption_justify = "left"
        return table

    def close(self) -> None:
        """Ends the live table; may be called twice."""
        if self._live:
            self._live.stop()

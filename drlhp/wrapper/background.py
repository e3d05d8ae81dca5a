"""The processes that run beside the program: watched, and ended before it."""

from __future__ import annotations

import multiprocessing.util
from collections.abc import Callable
from pathlib import Path

from drlhp.errors import ChildError, UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels, Failure, drain
from drlhp.runtime.processes import Children
from drlhp.runtime.weights import WeightsBoard

INTERFACE, TRAINER = "preference interface", "reward predictor"  # names of the processes
NO_GUARD = (
    "the wrapper starts processes, each of which imports your script first: put what the script does under "
    "`if __name__ == '__main__':`."
)
NO_GUARD_STATUS = 87  # of a process that has found this out, before it can report anything


class BackgroundProcesses:
    """The preference interface and the trainer, with the folder and the channels that they share with the program.

    `close` may be called twice; it is called when the program ends.
    """

    def __init__(self, run_dir: Path, channels: Channels) -> None:
        self.run_dir, self.channels = run_dir, channels
        self.children = Children(channels)
        self.board: WeightsBoard | None = None  # receives the trainer's weights
        self.closed = False
        # A program's end waits for its processes at priority 0 and closes the queues at 10: this comes before both.
        self._at_exit = multiprocessing.util.Finalize(None, self.close, exitpriority=20)

    def check(self) -> None:
        """Raises ChildError if a process has failed, and UserError if the script lets none start."""
        if any(process.exitcode == NO_GUARD_STATUS for process in self.children.processes.values()):
            raise UserError(NO_GUARD)
        for report in drain(self.channels.reports):
            if isinstance(report, Failure):
                raise ChildError(f"the {report.source} process failed: {report.message}", report.traceback)
        self.children.check()

    def save_reward_predictor(self, meanwhile: Callable[[], None]) -> Path | None:
        """Waits for the trainer to write a checkpoint and returns it; None if it has not trained yet.

        Args:
            meanwhile: is called again and again; it should raise an error if a process dies.
        """
        self.channels.save.set()
        while self.channels.save.is_set() and not self.children.has_finished(TRAINER):
            meanwhile()
            self.children.wait(0.05)
        folder = self.run_dir / "reward_predictor"
        if self.children.has_finished(TRAINER):  # its last checkpoint is the newest there will be
            found = checkpoint.list_checkpoints(folder)
        else:
            found = sorted(folder.glob("saved-*.pt"))
        return found[-1] if found else None

    def page_link(self, meanwhile: Callable[[], None]) -> str:
        """Waits for the labelling page to be served, and returns its link.

        Args:
            meanwhile: is called again and again; it should raise an error if a process dies.
        """
        from drlhp.label_server.security import run_token
        from drlhp.label_server.server import FOLDER, Address, port_before  # slow to import

        while (port := port_before(self.run_dir)) is None:
            meanwhile()
            self.children.wait(0.05)
        # A notebook is mostly open under this name. Under another one, a browser keeps the cookie from the frame.
        return Address("localhost", port).link(run_token(self.run_dir / FOLDER))

    def close(self) -> None:
        """Ends the processes, which write what they have learned."""
        if self.closed:
            return
        self.closed = True
        self._at_exit.cancel()
        try:
            self.children.stop()
        finally:
            self.children.kill()  # those that are left if a Ctrl-C has cut the waiting short
            drain(self.channels.reports)
            self.children.close()
            self.channels.close()

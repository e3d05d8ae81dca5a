"""Settings of the labelling page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from drlhp.bounds import SHARE, Bounds, at_least, check
from drlhp.errors import UserError
from drlhp.label_server import (
    DEFAULT_HOST,
    KEEP_CLIPS,
    SheetStore,
    check_origin,
)

PORT = Bounds(0, 2**16 - 1, f" from 0 to {2**16 - 1}")


@dataclass(frozen=True)
class PageConfig:
    """The page that --ui web serves."""

    web_host: str = DEFAULT_HOST
    """Address of the page. With any but this machine's own, everybody with the link gets in, unencrypted."""
    web_port: Annotated[int | None, PORT] = None
    """Port of the page; 0 is any free one. By default it is 8765, or the next free one if that is taken."""
    web_origin: str = ""
    """Address at which your proxy serves the page over an encrypted connection, such as https://label.example.org; it
    passes requests on to --web_host and --web_port."""
    web_framed: bool = False
    """Let pages of this machine (http://localhost:PORT), such as a notebook, show the page in a frame; otherwise no
    page may."""
    web_true_reward: bool = False
    """Evaluation mode: the page, and the run's line in its terminal, show the true reward too, which biases
    labellers."""
    tour: bool = True
    """Show a first-time labeller round on the page: a minute, with three practice pairs that are not stored.
    --no_tour leaves it out."""
    task: str = ""
    """What the agent should do, in one line beside the clips, also in a window or a terminal; the store keeps it. The
    default is a sentence about the environment, if it is a known one."""
    instructions: str | None = None
    """Text file with more about the task, for the help (H); the store keeps it."""
    repeat_share: Annotated[float, SHARE] = 0.05
    """Share of the pairs that the same person is asked again, sides swapped, to measure how consistent they are."""
    overlap_share: Annotated[float, SHARE] = 0.1
    """Share of the pairs that a second person is asked too, while two label."""
    clips_url: str = ""
    """Where the page's server keeps rendered clips: any URL that fsspec can write to, such as s3://BUCKET/PREFIX; the
    default is the run folder."""
    keep_clips: Annotated[int, at_least(0)] = KEEP_CLIPS
    """Rendered clips of the newest answers that are kept; others are rendered again on request."""

    def check(self) -> None:
        """Raises UserError if a value cannot work."""
        check(self, "--")
        if self.web_origin:
            try:
                check_origin(self.web_origin)
            except ValueError as error:
                raise UserError(f"--web_origin {self.web_origin} is no address: {error}.") from None
        self._text()
        if self.clips_url:
            try:
                SheetStore(self.clips_url).check()
            except OSError as error:
                raise UserError(str(error)) from error

    def flags(self) -> list[str]:
        """Returns the flags that give the same page; the store holds the texts already."""
        words = list[str]()
        for name, usual in ((field.name, field.default) for field in fields(self)):
            value = getattr(self, name)
            if value != usual and name not in ("task", "instructions"):
                switch = f"--{name}" if value else f"--no_{name}"
                words += [switch] if isinstance(value, bool) else [f"--{name}", str(value)]
        return words

    def _text(self) -> str:
        try:
            return "" if self.instructions is None else Path(self.instructions).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--instructions cannot be read ({error}); name a text file.") from error

    def settings(self, goal: int, initial_labels: int) -> dict[str, str]:
        """Returns the settings that the store keeps for every process that asks people.

        The store's task and instructions stay unless this config has others.

        Raises:
            UserError: the instructions cannot be read.
        """
        told = {name: text for name, text in (("task", self.task), ("instructions", self._text())) if text}
        return {
            "goal": str(goal),
            "initial_labels": str(initial_labels),
            "true_reward": str(int(self.web_true_reward)),
            "tour": str(int(self.tour)),
            "repeat_share": str(self.repeat_share),
            "overlap_share": str(self.overlap_share),
            "clips_url": self.clips_url,
            "keep_clips": str(self.keep_clips),
            **told,
        }

"""TODO."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from drlhp.errors import UserError
from drlhp.label_server import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    KEEP_CLIPS,
    SheetStore,
    check_origin,
)


@dataclass(frozen=True)
class PageConfig:
    """The page that --ui web serves."""

    web_host: str = DEFAULT_HOST
    """Address of the page. Any but this machine's own lets in everybody who has the link, over a plain connection."""
    web_port: int = DEFAULT_PORT
    """Port of the page; 0 is any free one."""
    web_origin: str = ""
    """Where a proxy of yours serves the page over an encrypted connection, such as https://label.example.org; it passes
    requests on to --web_host and --web_port."""
    web_true_reward: bool = False
    """Evaluation mode: the page, and the run's line in its terminal, tell the true reward too, which sways those who
    label."""
    task: str = ""
    """What the agent should do, in one line beside the clips, also in a window or a terminal; the store keeps it. By
    default a sentence about the environment, if it is a known one."""
    instructions: str | None = None
    """Text file with more about the task, for the help (H); the store keeps it."""
    repeat_share: float = 0.05
    """Share of the pairs that are asked of the same person again, sides swapped, to see how sure they are."""
    overlap_share: float = 0.1
    """Share of the pairs that are asked of a second person, while two label."""
    clips_url: str = ""
    """Where the page's server keeps the clips that it has drawn: any URL that fsspec can write to, such as
    s3://BUCKET/PREFIX; by default the run folder."""
    keep_clips: int = KEEP_CLIPS
    """Clips of answered pairs that are kept, those of the newest answers; others are drawn again when asked for."""

    def check(self) -> None:
        """Raises UserError if a value cannot work."""
        if not 0 <= self.web_port < 2**16:
            raise UserError(f"--web_port must lie between 0 and {2**16 - 1}, not {self.web_port}.")
        if self.web_origin:
            try:
                check_origin(self.web_origin)
            except ValueError as error:
                raise UserError(f"--web_origin {self.web_origin} is no address: {error}.") from None
        for name in ("repeat_share", "overlap_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name} must lie between 0 and 1, not {getattr(self, name)}.")
        if self.keep_clips < 0:
            raise UserError(f"--keep_clips must be 0 or more, not {self.keep_clips}.")
        self._text()
        if self.clips_url:
            try:
                SheetStore(self.clips_url).check()
            except OSError as error:
                raise UserError(str(error)) from error

    def flags(self) -> list[str]:
        """What a command line needs for the same page; texts are in the store already."""
        words = list[str]()
        for name, usual in ((field.name, field.default) for field in fields(self)):
            value = getattr(self, name)
            if value != usual and name not in ("task", "instructions"):
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words

    def _text(self) -> str:
        try:
            return "" if self.instructions is None else Path(self.instructions).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--instructions cannot be read ({error}); name a text file.") from error

    def settings(self, goal: int, initial_labels: int) -> dict[str, str]:
        """What all who ask people read from the store, where task and instructions hold until others are given.

        Raises UserError if the instructions cannot be read.
        """
        told = {name: text for name, text in (("task", self.task), ("instructions", self._text())) if text}
        return {
            "goal": str(goal),
            "initial_labels": str(initial_labels),
            "true_reward": str(int(self.web_true_reward)),
            "repeat_share": str(self.repeat_share),
            "overlap_share": str(self.overlap_share),
            "clips_url": self.clips_url,
            "keep_clips": str(self.keep_clips),
            **told,
        }

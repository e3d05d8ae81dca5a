"""Who watches a training run: people at this screen or on the page, an experiment tracker, and Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commands.config import RunConfig, settings
from commands.metrics import Metrics
from commands.progress import Progress, is_terminal, say
from commands.run_folder import read_run_id
from commands.trackers import Outcome
from commands.tracking import Tracking
from drlhp.label_server.gatherer import EpisodeFile, WebGatherer
from drlhp.labelling.gatherers import PreferenceGatherer
from drlhp.runtime.channels import Channels, Episode
from drlhp.screens.episode_window import EncodedFrames

if TYPE_CHECKING:
    from drlhp.screens.episode_window import EpisodeWindow

FRAME_SECONDS = 1 / 120  # between two looks at a window or at the keys, if the run has nothing else to do
IDLE_SECONDS = 0.05  # the same without either


class Watchers:
    """Shows the last full episode and the run's progress to the people who watch, and the curves to programs.

    People may label at this screen or on the page. There the true reward would bias their answers.
    """

    def __init__(self, config: RunConfig, folder: Path, channels: Channels) -> None:
        self.config, self.folder = config, folder
        self.page: WebGatherer | None = None
        self.teacher_is_person = False
        self._gatherer: PreferenceGatherer | None = None
        self._window: EpisodeWindow | None = None
        self._film: EpisodeFile | None = None  # shows the page the last full episode
        self._outcome: Outcome = "finished"
        self._metrics = Metrics(config.metrics, channels) if config.metrics else None
        self._tracking: Tracking | None = None
        if config.track != "none":
            self._tracking = Tracking(config.track, folder, read_run_id(folder), settings(config.as_dict()), say)

    def add_teacher(self, gatherer: PreferenceGatherer) -> None:
        """Follows this teacher; for a person on the page, the last full episode is kept as a film."""
        self._gatherer, self.teacher_is_person = gatherer, gatherer.is_person
        if isinstance(gatherer, WebGatherer):
            self.page, self._film = gatherer, EpisodeFile(self.folder)

    def open_window(self) -> None:
        """Opens a window that shows the last full episode."""
        from drlhp.screens.episode_window import EpisodeWindow

        self._window = EpisodeWindow()

    @property
    def label_here(self) -> bool:
        """Whether a person labels at this screen, and not in a browser."""
        return self.teacher_is_person and self.page is None

    @property
    def see_true_reward(self) -> bool:
        """Whether this screen shows the true reward, which a labeller here, or in a browser beside it, may not see."""
        return not self.teacher_is_person or self.config.page.web_true_reward

    @property
    def idle_seconds(self) -> float:
        """How long the run may sleep if no part has anything to do."""
        return FRAME_SECONDS if self.label_here or self._window else IDLE_SECONDS

    def progress(self, *, initial_labels: int, goal_labels: int) -> Progress:
        """Begins the run's progress line."""
        live = is_terminal() and not self.label_here
        progress = Progress(
            self.folder,
            initial_labels=initial_labels,
            goal_labels=goal_labels,
            live=live,
            people_label=self.teacher_is_person,
        )
        if self._metrics is not None:
            self._metrics.follow(progress)
        return progress

    def show_episodes(self, episodes: list[Episode]) -> None:
        """Draws the last of these full episodes, and hands them to the page."""
        for episode in episodes:
            if self._film is not None:
                self._film.offer(episode)
            if self._window is not None:
                reward = f", reward {episode.episode_return:g}" if self.see_true_reward else ""
                self._window.show(EncodedFrames(episode), episode.fps, f"the last full episode{reward}")
        if self._window is not None and "close" in self._window.tick():
            self._window.close()
            self._window = None

    def show_progress(self, progress: Progress, *, n_labels: int, clips: str) -> None:
        """Draws the progress line here and on the page.

        Args:
            clips: how many clips there are to ask about.
        """
        progress.show(n_labels, clips, true_reward=self.see_true_reward)
        if self.page is not None:
            self.page.line = progress.line(true_reward=self.see_true_reward)
            self.page.trouble = self._film.trouble if self._film else ""

    def leave_screen(self) -> None:
        """Ends the labelling of a run that is stopped, so that later messages appear in the terminal."""
        self._outcome = "stopped"
        if self._gatherer is not None:
            self._gatherer.close()

    def fail(self, why: str) -> None:
        """Tells the labellers on the page why the run ends, and the tracker that it failed."""
        self._outcome = "failed"
        if self.page is not None:
            self.page.fail(why)

    def close(self) -> None:
        """Closes the window, and waits for the film and for those who take numbers; may be called twice."""
        if self._window is not None:
            self._window.close()
        if self._film is not None:
            self._film.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._tracking is not None:
            self._tracking.close(self._outcome)

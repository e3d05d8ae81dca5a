"""`--metrics PORT`: a run's numbers for Prometheus, at http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from commands.progress import Progress
from drlhp.errors import UserError, reason_of
from drlhp.label_server import DEFAULT_HOST
from drlhp.runtime.channels import Channels
from drlhp.runtime.metrics import Number, check_package, registry_of
from drlhp.runtime.run_files import POLICIES

# Of the last report of a part: its kind, its name for Prometheus, and what it is.
REPORTED = {
    "a2c": {
        "steps": ("counter", "agent_steps", "Agent steps that the policy has taken"),
        "steps_per_second": ("gauge", "agent_steps_per_second", "Agent steps in the last second or so"),
        "episodes": ("counter", "episodes", "Episodes that have ended"),
        "episode_return": ("gauge", "episode_return", "Mean true return of the last 100 episodes"),
        "predicted_reward": ("gauge", "predicted_reward", "Mean predicted reward of a step, in the last updates"),
        "dropped_segments": ("counter", "dropped_segments", "Segments that were dropped, because nobody took them"),
    },
    "reward predictor": {
        "epochs": ("counter", "pretraining_epochs", "Passes over the initial labels"),
        "batches_due": ("counter", "label_batches_due", "Batches of labels that the policy's steps have made due"),
        "batches_trained": ("counter", "label_batches_trained", "Batches of labels that were trained of those due"),
        "label_lag_seconds": ("gauge", "label_lag_seconds", "From a label to weights that learned from it"),
    },
}
ACCURACY = {"training": "training_accuracy", "held out": "validation_accuracy"}


def address_of(words: str) -> tuple[str, int]:
    """Returns the host and port of PORT or HOST:PORT; raises UserError if it is neither."""
    host, _, port = words.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--metrics takes a port from 1 to {2**16 - 1}, or HOST:PORT, not '{words}'.")
    return host.strip("[]") or DEFAULT_HOST, int(port)


def check_metrics(words: str) -> None:
    """Raises UserError if the package is missing, or the address cannot be used."""
    check_package()
    host, port = address_of(words)
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise _unusable(words, error) from error


def _unusable(words: str, error: OSError) -> UserError:
    return UserError(f"--metrics cannot use {words} ({reason_of(error)}); give another one.")


class Metrics:
    """Serves the numbers of a run from a thread, until `close`."""

    def __init__(self, words: str, channels: Channels) -> None:
        from prometheus_client import start_http_server

        self._channels = channels
        self._progress: Progress | None = None
        host, port = address_of(words)
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, host, registry_of(self.numbers))
        except OSError as error:  # it was free a moment ago
            raise _unusable(words, error) from error

    def follow(self, progress: Progress) -> None:
        """Takes the numbers from here on from this progress of the run."""
        self._progress = progress

    def numbers(self) -> Iterator[Number]:
        """Yields what is known now."""
        yield Number("gauge", "labels", "Labels in the store", self._channels.n_labels.value)
        waiting = self._channels.segments.qsize()
        yield Number("gauge", "segments_waiting", "Segments in the queue from the policy to the interface", waiting)
        if self._progress is None:
            return
        values = self._progress.values
        for source, reported in REPORTED.items():
            for key, (kind, name, meaning) in reported.items():
                if key in values[source]:
                    yield Number(kind, name, meaning, values[source][key])  # type: ignore[arg-type]
        for labels, key in ACCURACY.items():
            if key in values["reward predictor"]:
                share = values["reward predictor"][key]
                yield Number("gauge", "accuracy", "Share of labels that are predicted", share, {"labels": labels})
        for policy in POLICIES:
            if (key := f"{policy}_mean") in values["evaluation"]:
                mean = values["evaluation"][key]
                yield Number("gauge", "evaluation_return", "Mean of the last evaluation", mean, {"actions": policy})

    def close(self) -> None:
        """Ends the server; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""`--metrics`: a run's numbers as Prometheus reads them, and the dashboard that shows them."""

from __future__ import annotations

import json
import math
import re
import signal
import socket
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support import ROOT
from tests.support.commands import DEADLINE, DOT, TINY, UNEVALUATED, refused, started, wait_for

NUMBERS = {
    *("drlhp_labels", "drlhp_segments_waiting", "drlhp_agent_steps_total", "drlhp_agent_steps_per_second"),
    *("drlhp_episodes_total", "drlhp_episode_return", "drlhp_predicted_reward", "drlhp_dropped_segments_total"),
    *("drlhp_pretraining_epochs_total", "drlhp_label_batches_due_total", "drlhp_label_batches_trained_total"),
    *("drlhp_label_lag_seconds", "drlhp_accuracy"),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def scraped(port: int) -> dict[str, float]:
    """The samples that a run gives now, by name; of several with a name the last. Empty before it listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_a_run_tells_prometheus_how_it_goes(tmp_path: Path) -> None:
    port = free_port()
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", *TINY, *UNEVALUATED)
    with started(tmp_path, *words, "--million_timesteps", "9", "--metrics", f"{port}") as process:
        seen = dict[str, float]()

        def has_learned() -> bool:
            seen.update(scraped(port))
            begun = ("label_batches_trained_total", "agent_steps_total", "label_lag_seconds")
            return all(seen.get(f"drlhp_{name}", 0) > 0 for name in begun) and seen["drlhp_labels"] >= 12

        wait_for(has_learned, process)
        assert seen.keys() >= NUMBERS
        assert seen["drlhp_labels"] <= 20
        assert seen["drlhp_label_batches_due_total"] >= seen["drlhp_label_batches_trained_total"]
        assert seen["drlhp_label_lag_seconds"] < 240, "from the last label until the policy had its weights"
        assert math.isnan(seen["drlhp_accuracy"]) or 0 <= seen["drlhp_accuracy"] <= 1
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
    assert scraped(port) == {}


def test_an_address_that_cannot_be_used_is_told_before_the_run(tmp_path: Path) -> None:
    words = ("train_policy_with_original_rewards", DOT, "--metrics")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--metrics cannot use {port}" in refused(tmp_path, *words, f"{port}")
    for wrong in ("0", "99999", "here", "localhost:"):
        assert "a port from 1 to 65535, or HOST:PORT" in refused(tmp_path, *words, wrong)
    assert not list(tmp_path.iterdir())


def test_the_dashboard_and_the_documentation_name_numbers_that_there_are() -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in named(target["expr"])}
    evaluations = {"drlhp_evaluation_return"}  # there are none before the first evaluation
    pages = {"drlhp_goal", "drlhp_ready", "drlhp_leased", "drlhp_answers", "drlhp_labellers", "drlhp_troubles"}
    told = named((ROOT / "docs" / "metrics.md").read_text())
    assert asked <= NUMBERS | evaluations | pages
    assert told == NUMBERS | evaluations | pages


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdrlhp_[a-z_]+", text))

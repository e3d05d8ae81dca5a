"""The cards of shared repositories: README.md with the header that the Hub reads, and the report's figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import drlhp
from commands.report import figures, words
from commands.report.references import references
from commands.report.runs import Experiment, Run
from commands.run_folder import short_revision
from drlhp.labelling.answers import PERSON

TAGS = ("deep-reinforcement-learning", "reinforcement-learning", "preference-learning", "drlhp")
PAPER = (
    "*Deep reinforcement learning from human preferences*, Christiano et al. 2017 "
    "([arXiv 1706.03741](https://arxiv.org/abs/1706.03741))"
)
SIZES = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"))  # as the Hub names them


def model_card(run: Run, parts: Sequence[str], name: str, pictures: Sequence[str]) -> str:
    """Returns the card of a run's networks.

    Args:
        parts: of `layout.PARTS`, those that are shared.
        name: of the repository, for the commands on the card.
        pictures: the figures beside the card, by file name.
    """
    metadata: dict[str, Any] = {
        "library_name": "drlhp",
        "pipeline_tag": "reinforcement-learning",
        "tags": [run.env_id, *TAGS],
    }
    if result := _result(run):
        metadata["model-index"] = [{"name": run.config["policy"].get("algo", "policy"), "results": [result]}]
    networks = " and ".join({"policy": "a policy", "reward_predictor": "a reward predictor"}[part] for part in parts)
    goal = words.goal(run.outcome) if run.trains_policy else ""
    loads = "".join(f" --load_{part}_ckpt_dir runs/loaded" for part in parts)
    watch = "python run.py watch runs/loaded\n" if "policy" in parts else ""
    lines = [
        _header(metadata),
        f"# {run.env_id}: {networks}\n",
        f"{words.headline(run)} {goal}".rstrip() + "\n",
        *_evaluations(run),
        *(f"![True reward of an episode, and what others reached]({picture})\n" for picture in pictures),
        *_facts(run),
        "## Use\n",
        "From a clone of the project, `load` checks the files before it puts them anywhere:\n",
        f"```\npython run.py load {name} --output runs/loaded\n{watch}"
        f"python run.py train_policy_with_preferences {run.env_id}{loads}\n```\n",
        f"The checkpoints hold tensors and plain values. Every setting is in `config.json`. The method is {PAPER}.",
    ]
    return "\n".join(lines) + "\n"


def dataset_card(about: dict[str, Any], rows: Sequence[dict[str, Any]], name: str, *, with_names: bool) -> str:
    """Returns the card of a set of labels.

    Args:
        about: what export.json holds.
        rows: of labels.jsonl.
        name: of the repository, for the commands on the card.
        with_names: whether the rows have the labellers' names and notes.
    """
    size = next((text for most, text in SIZES if len(rows) < most), "n>1M")
    metadata = {
        "task_categories": ["reinforcement-learning"],
        "tags": [about["env_id"], *TAGS],
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": "labels.jsonl"}],
    }
    people = {row["labeller"] for row in rows if row["teacher"] == PERSON}
    by = {PERSON: words.count(len(people), "person").replace("persons", "people")}
    teachers = sorted({row["teacher"] for row in rows})
    private = "with" if with_names else "without"
    facts = {
        "environment": f"`{about['env_id']}`",
        "answers": f"{len(rows):,}, by {', '.join(by.get(one, f'`{one}`') for one in teachers) or 'nobody'}",
        "segments": f"{about['segments']:,}, of at most {about['segment_length']} agent steps",
        "labellers": f"{private} their names and notes",
    }
    lines = [
        _header(metadata),
        f"# Preferences about {about['env_id']}\n",
        "People or programs compared two segments of an agent's behaviour, and said which one is better.\n",
        *_table(("", ""), list(facts.items())),
        "`labels.jsonl` has one answer per line: the segments `a` and `b`, and the choice. `segments/ID.npz` has the",
        "observations, actions and true rewards of a segment; read it with `allow_pickle=False`.\n",
        "## Use\n",
        f"```\npython run.py load {name} --prefs --output runs/labels\n"
        f"python run.py train_policy_with_preferences {about['env_id']} --load_prefs_dir runs/labels\n```\n",
        f"The method is {PAPER}.",
    ]
    return "\n".join(lines) + "\n"


def reward_pictures(run: Run) -> dict[str, bytes]:
    """Returns the report's figures of the true reward, by file name; none if no episode has ended."""
    if not run.trains_policy or not (len(run.curve("steps")[0]) or run.evaluations):
        return {}
    experiment, known = [Experiment(run.env_id, [run], {})], references(run.env_id)
    pictures = {"reward-steps.png": figures.reward(experiment, "steps", known)}
    if run.labels:
        known = tuple(one for one in known if one.labels != 0 or one.is_target)
        pictures["reward-labels.png"] = figures.reward(experiment, "labels", known)
    return pictures


def _header(metadata: dict[str, Any]) -> str:
    """Returns the YAML at the top of a card; JSON values are YAML too."""
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in metadata.items()), "---", ""])


def _result(run: Run) -> dict[str, Any] | None:
    """Returns the newest evaluation as the Hub lists it; None if there is none."""
    evaluation = run.outcome.evaluation
    if evaluation is None:
        return None
    value = f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": run.env_id, "type": run.env_id},
        "metrics": [{"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}],
    }


def _evaluations(run: Run) -> list[str]:
    """Returns the table of the newest evaluation of each kind of action."""
    rows = []
    for policy in ("deterministic", "sampled"):
        newest = [one for one in run.evaluations if one.policy == policy and one.steps > 0][-1:]
        for one in newest:
            numbers = (words.number(value) for value in (one.mean, one.std, one.lowest, one.highest))
            rows.append((policy, f"{one.episodes}", f"{one.steps:,.0f}", *numbers))
    head = ("actions", "episodes", "after agent steps", "mean reward", "standard deviation", "lowest", "highest")
    return _table(head, rows) if rows else []


def _facts(run: Run) -> list[str]:
    """Returns the table of what the networks were trained on, and by which program."""
    prefs, facts = run.config.get("prefs", {}), {}
    if run.uses_preferences:
        teacher = f"the synthetic teacher `{prefs.get('teacher')}`" if prefs.get("synthetic_prefs") else "people"
        facts["labels"] = f"{run.labels:,}, of {teacher}"
        if not math.isnan(accuracy := run.last("validation_accuracy")):
            facts["accuracy of the predictor on held-out labels"] = f"{accuracy:.1%}"
    if run.trains_policy:
        steps = run.last("steps")
        facts["agent steps"] = "unknown" if math.isnan(steps) else f"{steps:,.0f}"
        facts["algorithm"] = str(run.config["policy"].get("algo"))
    facts["seed"] = str(run.config["seed"])
    facts["program"] = f"drlhp {drlhp.__version__}, commit {short_revision(str(run.record.get('git_revision', '')))}"
    return _table(("", ""), list(facts.items()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown, and an empty one."""
    cells = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {row} |" for row in cells), ""]

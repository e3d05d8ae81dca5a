"""Makes the tables of the pages from results/: of experiments, of labels beside the true reward, of superseded runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from benchmarks.learning.evidence.estimates import improvement, interval, iqm
from benchmarks.learning.evidence.runs_table import by_run, table
from benchmarks.learning.evidence.store import RESULTS, Run, recorded
from commands.experiments import BODIES_LABELS, EXPERIMENTS, OFF_POLICY_BODIES
from commands.report.references import PAPERS_ABLATIONS, SUM_OF_A_TRAINING, Reference, references
from drlhp.runtime.run_files import POLICIES

FEWEST_FOR_A_RATIO = 5  # seeds; with fewer, one seed decides the ratio
ACTIONS = dict(zip(POLICIES, ("most likely", "sampled"), strict=True))
HEADLINES = {
    "moving-dot": "Moving dot",
    "pong-3.3k": "Pong",
    "enduro-as-people": "Enduro, judged as people do",
    "hopper-200": "Hopper",
    "walker-700": "Walker",
    "swimmer-200": "Swimmer",
    "halfcheetah-200-sac": "HalfCheetah, by SAC",
    "ant-400-sac": "Ant, by SAC",
    "reacher-700": "Reacher",
}
# Experiments on labels, and the one on the true reward to compare each with.
BODIES_PAIRS = {f"{task.lower()}-{counts[0]}": f"{task.lower()}-true" for task, counts in BODIES_LABELS.items()}
FEW_LABELS_PAIRS = {
    **{f"{name}-200": f"{name}-true-starts" for name in ("hopper", "walker", "swimmer")},
    "halfcheetah-200": "halfcheetah-true",
    **{f"{task.lower()}-{n}-sac": f"{task.lower()}-true-sac" for task, n in OFF_POLICY_BODIES.items()},
}
# BODIES_PAIRS compares it with a true reward that starts once; this one starts as often as the labels do.
SAME_STARTS_PAIRS = {"walker-700": "walker-true-two-starts"}
ATARI_PAIRS = {"moving-dot": "moving-dot-true", "pong-3.3k": "pong-true", "enduro-290": "enduro-290-true"}

Runs = dict[int, Run]  # of an experiment, by seed


def texts(results: Path = RESULTS) -> dict[str, str]:
    """Returns every table by the mark of its place in the pages."""
    found = recorded(results)
    kinds: dict[str, dict[str, Runs]] = {"atari": {}, "bodies": {}, "gymnasium": {}, "circus": {}, "ablations": {}}
    for name, runs in found.items():
        env_id = next(iter(runs.values()))["settings"]["env_id"]
        kinds[kind_of(name, env_id)][name] = runs
    return {
        "headlines": headlines(found),
        **{f"results-{kind}": experiments_table(those) for kind, those in kinds.items() if kind != "ablations"},
        "ablations": ablations_table(found),
        "greedy": greedy_table(found),
        "pairs-atari": pairs_table(found, ATARI_PAIRS),
        "pairs-bodies": pairs_table(found, BODIES_PAIRS, FEW_LABELS_PAIRS, SAME_STARTS_PAIRS),
        "sums": sums_table(found),
        "superseded": superseded_table(results / "superseded.csv"),
        "runs": by_run(found),
    }


def kind_of(name: str, env_id: str) -> str:
    """Returns which table an experiment is in: ablations, circus, bodies, gymnasium, or atari (with the moving dot)."""
    if EXPERIMENTS[name].ablates:
        return "ablations"
    if name.startswith("circus-"):
        return "circus"
    if env_id in {f"{task}-v1" for task in BODIES_LABELS}:
        return "bodies"
    return "atari" if "NoFrameskip" in env_id or env_id.startswith("ALE/") else "gymnasium"


def headlines(found: dict[str, Runs]) -> str:
    """Returns a table of the best-known tasks, each with a link to its curves."""
    head = ("task", "labels", "agent steps", "seeds", "most likely actions", "sampled actions")
    rows = []
    for name, task in HEADLINES.items():
        for tuned, runs in by_tuning(found.get(name, {})):
            scores = [_middle_and_range(values(runs, policy)) for policy in POLICIES]
            seeds = f"{len(runs)}{'' if tuned else ', fresh'}"
            link = f"[{task}](results/{name}/curves.png)"
            rows.append((link, *_labels_and_steps(runs), seeds, *scores, _others(runs)))
    return table((*head, "others, after agent steps"), rows)


def experiments_table(found: dict[str, Runs]) -> str:
    """Returns a table with a row for the seeds of an experiment that settings were tuned on, and one for the others."""
    head = ["experiment", "n", "seeds", "labels", "agent steps"]
    for actions in ACTIONS.values():
        head += [f"{actions} actions: IQM [95 %]", "lowest to highest"]
    rows = []
    for name, runs in found.items():
        for tuned, those in by_tuning(runs):
            scores = [_estimate(values(those, policy)) for policy in POLICIES]
            seeds = f"{_seeds(those)}, {'tuned on' if tuned else 'fresh'}"
            rows.append((name, len(those), seeds, *_labels_and_steps(those), *sum(scores, ()), _others(those)))
    return table((*head, "others, after agent steps"), rows)


def ablations_of(found: dict[str, Runs]) -> dict[str, dict[str, Runs]]:
    """Returns the fresh runs of ablations by the experiment that they change, whose own runs are the first."""
    fresh = {name: dict(by_tuning(runs)).get(False, {}) for name, runs in found.items()}
    by_original: dict[str, dict[str, Runs]] = {}
    for name, experiment in EXPERIMENTS.items():
        if (original := fresh.get(experiment.ablates)) and (runs := fresh.get(name)):
            by_original.setdefault(experiment.ablates, {experiment.ablates: original})[name] = runs
    return by_original


def ablations_table(found: dict[str, Runs]) -> str:
    """Returns a table of the ablations that have fresh runs, each below the experiment that it changes."""
    head = ["experiment", "what differs", "n", "seeds"]
    for actions in ACTIONS.values():
        head += [f"{actions} actions: IQM [95 %]", "lowest to highest", "P(better) [95 %]"]
    rows = []
    for original, group in ablations_of(found).items():
        unchanged = EXPERIMENTS[original].command
        for name, runs in group.items():
            differs = " ".join(EXPERIMENTS[name].command[len(unchanged) :])
            cells = [name, f"`{differs}`" if differs else "", len(runs), _seeds(runs)]
            for policy in POLICIES:
                scores = values(runs, policy)
                better = _probability([scores, values(group[original], policy)]) if name != original else ""
                cells += [*_estimate(scores), better]
            reached = PAPERS_ABLATIONS[unchanged[1]].get(what_differs(name))
            rows.append((*cells, "" if reached is None else f"{reached:,g}"))
    return table((*head, "paper"), rows)


def what_differs(name: str) -> str:
    """Returns what an ablation changes, such as no-l2, whatever its task; "" of other experiments."""
    task = EXPERIMENTS[name].ablates.partition("-")[0]
    return name.removeprefix("ablation-").removeprefix(f"{task}-") if task else ""


def greedy_table(found: dict[str, Runs]) -> str:
    """Returns a table of the moving dot's scores as shares of what the best player gets from the same starts."""
    rows = []
    for name, runs in found.items():
        for tuned, those in by_tuning({seed: run for seed, run in runs.items() if "greedy" in run["figures"]}):
            seeds = f"{_seeds(those)}, {'tuned on' if tuned else 'fresh'}"
            best = {run["figures"]["greedy"] for run in those.values()}
            cells = [name, len(those), seeds, _labels_and_steps(those)[0], ", ".join(f"{one:.1f}" for one in best)]
            for policy in POLICIES:
                shares = [score(run, policy) / run["figures"]["greedy"] for run in those.values()]
                cells.append(f"{float(iqm(shares)):.0%} ({min(shares):.0%} to {max(shares):.0%})")
            rows.append(cells)
    head = ("experiment", "n", "seeds", "labels", "the best player")
    return table((*head, *(f"{actions} actions: IQM (range)" for actions in ACTIONS.values())), rows)


PAIRS_HEAD = (
    *(
        "on labels",
        "on the true reward",
        "actions",
        "n",
        "agent steps: labels; true reward",
        "IQM: labels, true reward",
    ),
    *("same seed: labels ahead, labels minus true reward", "P(labels > true reward) [95 %]", "labels / true reward"),
)


def pairs_table(found: dict[str, Runs], *groups: dict[str, str]) -> str:
    """Returns a table of labels beside the true reward.

    In each group of pairs, seeds that settings were tuned on stand before fresh ones. The last rows of either are means
    of all tasks, if there is more than one with enough seeds.
    """
    rows = [row for pairs in groups for tuned in (True, False) for row in _pairs(found, pairs, tuned)]
    return table(PAIRS_HEAD, rows)


def _pairs(found: dict[str, Runs], pairs: dict[str, str], tuned: bool) -> Iterator[tuple[str, ...]]:
    samples: dict[str, list[list[float]]] = {policy: [] for policy in POLICIES}
    for learned, true in pairs.items():
        runs, others = (dict(by_tuning(found.get(name, {}))).get(tuned, {}) for name in (learned, true))
        for policy in POLICIES if runs and others else ():
            sample = values(runs, policy), values(others, policy)
            if min(map(len, sample)) > 1:
                samples[policy] += sample
            seeds = f"{len(runs)}, {len(others)}{'' if tuned else ', fresh'}"
            steps = _same_or_both(_steps(runs), _steps(others))
            yield learned, true, ACTIONS[policy], seeds, steps, *_comparison(runs, others, policy)
    for policy, those in samples.items():
        if len(those) > 2:
            mean = f"mean of the {len(those) // 2} tasks"
            yield mean, "", ACTIONS[policy], "", "", "", "", _probability(those), ""


def _comparison(runs: Runs, others: Runs, policy: str) -> tuple[str, ...]:
    first, second = values(runs, policy), values(others, policy)
    middles = float(iqm(first)), float(iqm(second))
    both = sorted(runs.keys() & others.keys())
    gaps = [score(runs[seed], policy) - score(others[seed], policy) for seed in both]
    ahead = (
        f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}: {', '.join(f'{gap:+,.1f}' for gap in gaps)}" if gaps else ""
    )
    enough = min(len(first), len(second)) >= FEWEST_FOR_A_RATIO and middles[1] > 0
    ratio = f"{middles[0] / middles[1]:.0%}" if enough else ""
    return f"{middles[0]:,.1f}, {middles[1]:,.1f}", ahead, _probability([first, second]), ratio


def _probability(samples: list[list[float]]) -> str:
    """Returns how probably labels are ahead, with its interval if there is one."""
    between = interval(improvement, *samples)
    return f"{float(improvement(*samples)):.2f}" + (f" [{between[0]:.2f} to {between[1]:.2f}]" if between else "")


def sums_table(found: dict[str, Runs]) -> str:
    """Returns a table of the sums over all of a training, if others report those and no final score."""
    rows = []
    for name, runs in found.items():
        first = next(iter(runs.values()))
        for other in references(first["settings"]["env_id"]):
            labels = first["figures"]["labels"]
            if other.not_comparable == SUM_OF_A_TRAINING and (other.labels == 0) == (labels == 0):
                sums = ", ".join(f"{run['figures']['true_reward_total']:g}" for run in runs.values())
                rows.append((name, labels, f"{first['figures']['agent_steps']:,}", sums, _reference(other)))
    return table(("experiment", "labels", "agent steps", "true reward of the training", "others"), rows)


def superseded_table(path: Path) -> str:
    """Returns a table of superseded.csv with a row for the seeds of a variant."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            groups.setdefault((row["experiment"], row["variant"], row["otherwise"]), []).append(row)
    rows = []
    for (experiment, variant, otherwise), those in groups.items():
        steps = _range([int(row["evaluation_steps"] or row["agent_steps"]) for row in those])
        scores = (
            ", ".join(f"{float(row[policy]):,.1f}" if row[policy] else "" for row in those) for policy in POLICIES
        )
        rows.append((experiment, variant, otherwise, ", ".join(row["seed"] for row in those), steps, *scores))
    head = (
        "experiment",
        "variant",
        "what was otherwise",
        "seeds",
        "agent steps",
        "most likely actions",
        "sampled actions",
    )
    return table(head, rows)


def by_tuning(runs: Runs) -> Iterator[tuple[bool, Runs]]:
    """Yields the evaluated runs of seeds that settings were tuned on, then those of fresh seeds, if there are any."""
    for tuned in (True, False):
        those = {s: run for s, run in runs.items() if run["tuned_on"] == tuned and "evaluation" in run["figures"]}
        if those:
            yield tuned, those


def score(run: Run, policy: str) -> float:
    """Returns the mean of a run's last evaluation."""
    return float(run["figures"]["evaluation"][policy])


def values(runs: Runs, policy: str) -> list[float]:
    """Returns the scores of all seeds."""
    return [score(run, policy) for run in runs.values()]


def _estimate(scores: list[float]) -> tuple[str, str]:
    """Returns the cells of an IQM with its interval, and of the spread; of one run its score alone."""
    middle, between = f"{float(iqm(scores)):,.1f}", interval(iqm, scores)
    if between is None:
        return middle, ""
    return f"{middle} [{between[0]:,.1f} to {between[1]:,.1f}]", f"{min(scores):,.1f} to {max(scores):,.1f}"


def _middle_and_range(scores: list[float]) -> str:
    middle = f"{float(iqm(scores)):,.1f}"
    return middle if len(scores) == 1 else f"{middle} ({min(scores):,.1f} to {max(scores):,.1f})"


def _labels_and_steps(runs: Runs) -> tuple[str, str]:
    """Returns the labels and the agent steps before the evaluations that are reported."""
    return _range([run["figures"]["evaluation"]["labels"] for run in runs.values()]), _steps(runs)


def _steps(runs: Runs) -> str:
    return _range([run["figures"]["evaluation"]["agent_steps"] for run in runs.values()])


def _same_or_both(first: str, second: str) -> str:
    return first if first == second else f"{first}; {second}"


def _seeds(runs: Runs) -> str:
    seeds = sorted(runs)
    whole = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _others(runs: Runs) -> str:
    """Returns what others reached with the same kind of reward and half to twice as many labels; "" if nothing is."""
    run = next(iter(runs.values()))
    settings, labels = run["settings"], run["figures"]["labels"]
    teacher = settings.get("prefs.teacher") or ""
    judges_as_people = teacher == "examples.circus:overtaking"
    if ":" in teacher and not judges_as_people:
        return ""  # a trick, of which the environment's reward tells nothing
    found = [r for r in references(settings["env_id"]) if not r.on_the_way and not r.not_comparable]
    if labels == 0:
        found = [r for r in found if r.labels == 0]
    else:
        found = [r for r in found if r.labels != 0 and ("synthetic" in r.who) != judges_as_people]
        found = [r for r in found if r.labels is None or labels / 2 <= r.labels <= labels * 2]
    found.sort(key=lambda r: (abs((r.labels or labels) - labels), not r.is_target))
    return _reference(found[0]) if found else ""


def _reference(other: Reference) -> str:
    if other.steps is None:
        return f"{other.who}: {other.reward:,g}"
    after = f"{other.steps / 1e6:g}M" if other.steps >= 1e5 else f"{other.steps:,.0f}"
    return f"{other.who}: {other.reward:,g} ({after})"


def _range(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"

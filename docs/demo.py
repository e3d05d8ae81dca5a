"""Carries out the demo, and puts the summary that it prints into README.md and docs/first_steps.md.

python -m docs.demo
"""

from __future__ import annotations

import subprocess

from benchmarks import ROOT
from benchmarks.pages import write_between
from commands.run_folder import git_revision, short_revision

FOLDER = "  run folder"  # begins the lines that name this run's files


def main() -> None:
    """Writes the summary, with the commit that printed it."""
    revision = short_revision(git_revision())
    printed = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    summary, _, rest = printed[printed.index("Finished.") :].partition(FOLDER)
    summary += next(line for line in rest.splitlines() if line.startswith("The agent"))
    write_between("demo", f"```\n{summary}\n```\n\n(Printed by commit {revision}, on two cores.)")


if __name__ == "__main__":
    main()

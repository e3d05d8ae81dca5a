"""Installs what one of the other implementations needs, at exact versions, in an environment of its own.

python benchmarks/speed/peers/install.py sb3
python benchmarks/speed/peers/install.py imitation
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).resolve().parent
NAMES = sorted(path.parent.name for path in PEERS.glob("*/requirements.txt"))


def python_of(name: str) -> Path:
    """The interpreter that runs benchmarks/speed/peers/NAME/run.py."""
    return PEERS / f".venv-{name}" / "bin" / "python"


def install(name: str) -> None:
    """Creates the environment of `name`; does nothing where it is there with today's requirements.

    Raises RuntimeError if a package cannot be installed.
    """
    folder = PEERS / f".venv-{name}"
    requirements = PEERS / name / "requirements.txt"
    # Written last, so that an interrupted installation is never taken for a finished one.
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    log = PEERS / f".venv-{name}.log"
    print(f"Installing {name} in {folder} (1 to 10 minutes: PyTorch is large; log: {log})", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    with log.open("w") as output:
        try:
            venv.create(folder, with_pip=True)
            command = (python_of(name), "-m", "pip", "install", "--requirement", requirements)
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True)
        except subprocess.CalledProcessError as error:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise RuntimeError(
                f"{name} could not be installed with Python {version} (its versions were chosen for Python 3.11): "
                f"mend what the end of {log} names and run this again."
            ) from error
    shutil.copyfile(requirements, stamp)


def main() -> None:
    parser = argparse.ArgumentParser(description="Install another implementation, for the benchmark only.")
    parser.add_argument("name", choices=NAMES, help="which one")
    try:
        install(parser.parse_args().name)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

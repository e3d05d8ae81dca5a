#!/usr/bin/env bash
# One seed in each task of a Slurm array. From the folder of the clone:
#
#     sbatch --array=0-4 examples/slurm.sh pong train_policy_with_preferences PongNoFrameskip-v4 --synthetic_prefs
#
# makes runs/pong-seed0 to runs/pong-seed4. A task that is preempted, or whose time is over, writes checkpoints first; it
# is put into the queue again, and goes on. The folder has to be on storage that all nodes share.
#SBATCH --job-name=drlhp
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.log
# Two minutes before the end of its time the script gets USR1.
#SBATCH --signal=B:USR1@120
set -euo pipefail

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || [ $# -lt 3 ]; then
    echo "usage: sbatch --array=0-4 $0 NAME MODE ENV [FLAG ...]" >&2
    exit 2
fi
run="runs/$1-seed$SLURM_ARRAY_TASK_ID"
shift

# A folder without config.json is left by a node that was lost before the run began.
if [ -e "$run/config.json" ]; then
    words=(--resume "$run")
else
    words=("$@" --seed "$SLURM_ARRAY_TASK_ID" --log_dir "${run%/*}" --run_name "${run##*/}")
fi

PYTHON=${PYTHON:-.venv/bin/python}
"$PYTHON" run.py "${words[@]}" &
child=$!
again=false

# The run writes its checkpoints on TERM. Slurm puts a preempted job into the queue again by itself; one whose time is
# over has to ask for it.
trap 'kill -TERM "$child" 2>/dev/null || true' TERM
trap 'again=true; kill -TERM "$child" 2>/dev/null || true' USR1

status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends `wait`, and the run is still writing
    status=0
    wait "$child" || status=$?
done
if $again && [ "$status" -ne 0 ]; then
    exec scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$status"

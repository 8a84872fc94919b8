#!/usr/bin/env bash
# The simulation alone, from nothing: a workload from the shipped model, five policies on one site side by side, and the report.
# Usage: examples/simulation.sh [FOLDER]      (gridweave must be on the PATH)
set -euo pipefail
folder=${1:-out/simulation}
mkdir -p "$folder"

step() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$@"
}

echo "A workload for a site of 430 nodes, drawn from a model of the CTC-SP2 trace (no download needed):"
step gridweave trace generate "$folder/workload.swf" --jobs 10000 --nodes 430 --load 0.8 --seed 1
step gridweave trace info "$folder/workload.swf" --plot "$folder/workload.png"

echo
echo "The same jobs in two orders, with EASY backfilling and without:"
step gridweave simulate "$folder/workload.swf" --order fcfs,sjf --backfill none,easy --out "$folder/queue"

echo
echo "... and on a planning site, where no job wider than half the machine starts on weekdays from 8:00 to 18:00:"
step gridweave simulate "$folder/workload.swf" --discipline planning \
  --limit wider-than=50%,days=mon-fri,from=8:00,to=18:00 --out "$folder/planning"

cat <<TEXT

Look at
  $folder/workload.png                    what the workload is like
  $folder/queue/comparison.png            the policies side by side
  $folder/queue/fcfs-easy/schedule.png    time by nodes, the jobs as rectangles
  $folder/planning/utilisation.png        utilisation and queue length over time
Next: put a trace of your own in place of workload.swf, or \`gridweave trace fetch KTH-SP2-1996-2\`.
TEXT

#!/bin/sh
# Trains on one job with several ranks of this machine: one fetcher, and examples/train.py for each rank.
#
#     gristmill up --state-dir state &
#     examples/train-ranks.sh --state-dir state --job j1 --pipeline examples/resnet50.yaml --data shards
#
# All options are the fetcher's. RANKS (4) is the number of ranks, RUN the name of the run, OUT (ranks) the folder of
# checkpoints and logs. Ctrl-C ends everything; run it again to go on at the checkpoints.
set -eu

ranks=${RANKS:-4}
out=${OUT:-ranks}
run=${RUN:-$(date +%s)-$$}
here=$(dirname "$0")
fetcher=${FETCHER:-gristmill-fetcher}
socket=$(mktemp -d)/ranks.sock
mkdir -p "$out"

children=
end() {
    trap - EXIT INT TERM
    for child in $children; do kill "$child" 2>/dev/null || true; done
    wait || true
    rm -rf "$(dirname "$socket")"
}
trap 'end; exit 130' INT
trap 'end; exit 143' TERM
trap end EXIT

"$fetcher" "$@" --socket "$socket" --ranks "0-$((ranks - 1))" --of "$ranks" --run "$run" &
children=$!

failed=0
trainers=
rank=0
while [ "$rank" -lt "$ranks" ]; do
    python3 "$here/train.py" --socket "$socket" --rank "$rank" --of "$ranks" --run "$run" \
        --checkpoint "$out/rank$rank.json" --log "$out/rank$rank.log" &
    trainers="$trainers $!"
    children="$children $!"
    rank=$((rank + 1))
done
for trainer in $trainers; do
    wait "$trainer" || failed=1
done
exit "$failed"

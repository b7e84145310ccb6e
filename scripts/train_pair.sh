#!/usr/bin/env bash
# Makes a pair like the one in models/: rooms, target, draft, exits, fed head, predictor and the target's pass costs.
#
#   scripts/with_env scripts/train_pair.sh out/pair            # from nothing: about fifteen hours of two CPU cores
#   scripts/with_env scripts/train_pair.sh out/pair models     # goes on from the pair in models/: about four
#
# What it makes lies in OUT/models at the end. A killed run goes on with the same words, for each of its commands does;
# to make a stage anew, remove its folder and those of what builds on it. PROCESSES (2) train the pair side by side.
# The shipped pair's stages had other numbers; with these the second way was not gone to its end yet.
set -euo pipefail
out=${1:?give a folder for everything that is made}
start=${2:-}

run() {
    echo "+ $*"
    "${PYTHON:-python}" -m adapters_training "$@"
}

pair() { # NAME ROLE OPTIONS...: train one of the two models, into OUT/NAME/model
    local name=$1 role=$2
    shift 2
    echo "+ pair $role: $name"
    "${PYTHON:-python}" -m torch.distributed.run --standalone --nproc-per-node "${PROCESSES:-2}" -m adapters_training pair \
        --role "$role" --processor "$out/processor" --out "$out/$name" --export "$out/$name/model" --mixed-precision bf16 "$@"
}

walk() { # NAME MODEL SEED SCENES: a model walks, the oracle corrects it (DAgger)
    run data --out "$out/$1" --walker "$2" --first-seed "$3" --scenes "$4" --frames-per-scene 30 --processes "$(nproc)"
}

run data --out "$out/held-out" --held-out --scenes 50 --frames-per-scene 12 --processes "$(nproc)"
if [ -z "$start" ]; then
    run data --out "$out/data" --scenes 1300 --frames-per-scene 24 --first-seed 100000 --processes "$(nproc)" # 31,200 frames
    run processor --out "$out/processor"
    # The vision tower alone for a quarter of the steps, then four of five steps without words, then answers.
    pair target target --data "$out/data" --steps 8000 --batch-frames 6 --vision-share 0.25 --ground-share 0.6 \
        --learning-rate 1e-3 --seed 1
    # A frame of a walk is learned from three times as often: what a model does wrong is in no oracle's data.
    before=target
    data=("$out/data")
    for number in 1 2 3; do
        walk "walk-$number" "$out/$before/model" "$((400000 + 200 * (number - 1)))" 200
        data+=("$out/walk-$number" "$out/walk-$number" "$out/walk-$number")
        pair "target-$number" target --data "${data[@]}" --start-from "$out/$before/checkpoint.pt" --steps 1800 \
            --batch-frames 6 --vision-share 0 --ground-share 0.25 --learning-rate 6e-4 --seed 11
        before=target-$number
    done
    frames=("$out/data" "$out/walk-1" "$out/walk-2" "$out/walk-3")
    pair draft draft --data "${frames[@]}" --steps 3000 --batch-frames 10 --vision-share 0.25 --ground-share 0.6 \
        --learning-rate 1.5e-3 --seed 2
    answers=2000 fed_answers=6000 fed_held_out=300 steps=600 fed_steps=1200
else
    run data --out "$out/data" --scenes 900 --frames-per-scene 24 --first-seed 140000 --processes "$(nproc)" # new rooms
    run processor --out "$out/processor" --like "$start/target"
    pair target target --data "$out/data" --start-from "$start/target" --steps 2400 --batch-frames 6 --vision-share 0.01 \
        --ground-share 0.06 --learning-rate 5e-4 --seed 21
    walk walk-1 "$out/target/model" 420000 150
    # The mean of what it learned at a high rate and what it knew before; then a little more of both.
    pair target-1 target --data "$out/data" "$out/walk-1" "$out/walk-1" "$out/walk-1" --average-with "$start/target" \
        --start-from "$out/target/checkpoint.pt" --steps 600 --batch-frames 6 --vision-share 0 --ground-share 0 \
        --learning-rate 2e-4 --seed 22
    before=target-1
    frames=("$out/data" "$out/walk-1")
    pair draft draft --data "${frames[@]}" --start-from "$start/draft" --teacher "$out/$before/model" --steps 450 \
        --batch-frames 6 --vision-share 0 --ground-share 0.1 --learning-rate 1e-3 --seed 23
    answers=900 fed_answers=900 fed_held_out=200 steps=300 fed_steps=1000
fi
target=$out/$before/model

# The draft goes on with the target's own answers, and the target as its teacher.
run answers --model "$target" --data "$out/data" --out "$out/answers" --frames "$answers"
pair distil draft --data "$out/answers" --start-from "$out/draft/checkpoint.pt" --teacher "$target" --steps "$steps" \
    --batch-frames 10 --vision-share 0 --ground-share 0 --learning-rate 1e-3 --seed 3
draft=$out/distil/model

# Exits after all layers that may have one, of which the few that pay are kept.
run exits --config config/exits/embedded_pair.yaml --target "$target" --data "${frames[@]}" --held-out "$out/held-out" \
    --device auto --out "$out/exits"
run measure-exits --target "$target" --draft "$draft" --exits "$out/exits" --held-out "$out/held-out"
run select-exits --exits "$out/exits" --out "$out/models/exits" --profile go2_a100_scaled

# The fed head learns from the target's own answers.
run answers --model "$target" --data "$out/data" --out "$out/fed-answers" --frames "$fed_answers"
run answers --model "$target" --data "$out/held-out" --out "$out/fed-held-out" --frames "$fed_held_out"
run fed-head --config config/fed_head/embedded_pair.yaml --target "$target" --data "$out/fed-answers" \
    --held-out "$out/fed-held-out" --draft "$draft" --steps "$fed_steps" --device auto --out "$out/fed-head"

# The predictor learns from drafts on the held-out frames.
run predictor --draft "$draft" --target "$target" --data "$out/held-out" --out "$out/predictor"
# Leave the machine alone for twelve minutes.
[ -e "$out/pass-cost/pass_cost.json" ] || run profile-verifier --target "$target" --out "$out/pass-cost"

mkdir -p "$out"/models/{target,draft,fed_head}
cp "$target"/* "$out/pass-cost/pass_cost.json" "$out/models/target"
cp "$draft"/* "$out"/predictor/predictor.* "$out/models/draft"
cp "$out"/fed-head/fed_* "$out/fed-head/results.json" "$out/models/fed_head"
echo "$out/models is ready; its sample bag: python -m vlm_nav_evaluation record --out $out/models/sample_bag"

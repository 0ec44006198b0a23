#!/bin/sh
# What a GPU has to show, in one go: its tests, one client step, whole runs, the way of peers, many clients.
#
#     sh benchmarks/gpu.sh DATA [OUT]
#
# DATA holds cifar10/*.parquet; OUT is results/performance unless given. About a quarter of an hour on an H200. One that
# fails does not stop the others; the exit code says so.
data=${1:?"is missing: sh benchmarks/gpu.sh DATA [OUT]"}
out=${2:-results/performance}
python=${PYTHON:-python3}
export PYTHONPATH=. PYTHONUNBUFFERED=1
"$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "There is no CUDA device here.")' || exit 1
mkdir -p "$out"
failed=0

# Side by side: most of their time is the reference engine's, which leaves the GPU idle.
tests() {
    "$python" -m pytest -s "$@" 2>&1
    echo "exit code $?"
}
tests tests/engine/test_cuda.py -k twenty_steps >"$out/gpu-tests.1" &
tests tests/engine/test_cuda.py -k gradient >"$out/gpu-tests.2" &
tests tests/engine/test_cuda.py -k "not twenty_steps and not gradient" >"$out/gpu-tests.3" &
tests tests/engine/test_kernels.py tests/nn/test_on_a_gpu.py >"$out/gpu-tests.4" &
wait
cat "$out"/gpu-tests.[1-4] | tee "$out/gpu-tests.txt"
rm "$out"/gpu-tests.[1-4]
test "$(grep -c '^exit code 0$' "$out/gpu-tests.txt")" = 4 || failed=1

measure() {
    name=$1
    shift
    "$python" "benchmarks/$name.py" "$@" || failed=1
}
measure client_step --lanes 10 --methods factorized-fl-beta,stand-alone --out "$out/client-step.json"
measure full_run --data "$data" --out "$out/full-run.json"
measure full_run --data "$data" --methods per-fedavg,fedavg,fedfomo --out "$out/full-run-others.json"
measure peers --out "$out/peers.json"
measure many_clients --out "$out/many-clients.json"
exit $failed

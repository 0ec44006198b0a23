#!/bin/sh
# What a GPU has to show: its tests, one client step, whole runs, the way of peers, many clients.
#
#     sh benchmarks/gpu.sh DATA [OUT [PART ...]]
#
# DATA holds cifar10/*.parquet; OUT is results/performance unless given; parts are tests, step, run, others, peers and
# clients, all unless some are named. One that fails does not stop the others; the exit code says so.
data=${1:?"is missing: sh benchmarks/gpu.sh DATA [OUT [PART ...]]"}
out=${2:-results/performance}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-python3}
export PYTHONPATH=. PYTHONUNBUFFERED=1
"$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "There is no CUDA device here.")' || exit 1
mkdir -p "$out"

run_tests() {
    "$python" -m pytest -s "$@" 2>&1
    echo "exit code $?"
}

# Side by side: most of their time is the reference engine's, which leaves the GPU idle. Files are found by their marker,
# as collecting all tests takes packages that a GPU machine may lack.
tests() {
    engine=tests/engine/test_cuda.py
    marked=$(grep -rl --include='test_*.py' 'pytest\.mark\.gpu' tests | grep -v "^$engine$")
    run_tests $engine -k twenty_steps >"$out/gpu-tests.1" &
    run_tests $engine -k gradient >"$out/gpu-tests.2" &
    run_tests $engine -k "not twenty_steps and not gradient" >"$out/gpu-tests.3" &
    run_tests $marked tests/engine/test_kernels.py tests/engine/test_compiling.py >"$out/gpu-tests.4" &
    wait
    cat "$out"/gpu-tests.[1-4] | tee "$out/gpu-tests.txt"
    rm "$out"/gpu-tests.[1-4]
    test "$(grep -c '^exit code 0$' "$out/gpu-tests.txt")" = 4
}

measure() {
    name=$1
    shift
    "$python" "benchmarks/$name.py" "$@"
}

failed=0
for part in ${*:-tests step run others peers clients}; do
    case $part in
        tests) tests ;;
        step) measure client_step --lanes 10 --methods factorized-fl-beta,stand-alone --out "$out/client-step.json" ;;
        run) measure full_run --data "$data" --out "$out/full-run.json" ;;
        others) measure full_run --data "$data" --methods per-fedavg,fedavg,fedfomo --out "$out/full-run-others.json" ;;
        peers) measure peers --out "$out/peers.json" ;;
        clients) measure many_clients --out "$out/many-clients.json" ;;
        *) echo "There is no part $part: tests, step, run, others, peers, clients." && false ;;
    esac || failed=1
done
exit $failed

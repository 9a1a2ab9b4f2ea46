#!/usr/bin/env bash
# one_gpu.sh ROOT OUT RUNNER…: the proof on one GPU of an image whose root file system lies at ROOT.
# RUNNER… runs a command inside it as the image's user, or as USER_SPEC. Every output goes to OUT.
set -uo pipefail
root=$1 out=$2
shift 2
mkdir -p "$out"
install -m 644 "$(dirname "$0")/torch_compile.py" "$root/tmp/torch_compile.py"
failed=0

prove() {
    local name=$1
    shift
    echo "== $name: $*"
    if ! "$@" >"$out/$name.txt" 2>&1; then
        echo "-- exit $?"
        failed=1
    fi
    tail -n 25 "$out/$name.txt"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
prove selftest-1-rank "$@" gpucomm-selftest
prove selftest-1-rank-json "$@" gpucomm-selftest --json
prove selftest-2-ranks "$@" gpucomm-selftest --nproc 2
prove selftest-2-ranks-json "$@" gpucomm-selftest --nproc 2 --json
prove compile-default-user "$@" python /tmp/torch_compile.py
USER_SPEC=12345:0 prove compile-12345 "$@" python /tmp/torch_compile.py
exit "$failed"

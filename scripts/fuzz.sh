#!/usr/bin/env bash
# Runs every fuzz target on so many inputs: scripts/fuzz.sh [RUNS] [SEED]. The same numbers make the same inputs. Needs a
# C++ compiler for libFuzzer; coverage comes from flags of the stable compiler, so that neither a nightly nor cargo-fuzz
# is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-100000}
seed=${2:-1}
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Ccodegen-units=1 -Cdebug-assertions"

fuzz() { # folder, target, seeds...
    local folder=$1 target=$2
    shift 2
    local corpus
    corpus=$(mktemp -d)
    cp "$@" "$corpus"
    echo "fuzzing $target on $runs inputs from $# seeds"
    # Naming the target keeps the flags away from build scripts.
    RUSTFLAGS="$coverage" cargo run --quiet --release --target "$(rustc -vV | sed -n 's/^host: //p')" \
        --manifest-path "$folder/fuzz/Cargo.toml" --target-dir target/fuzz --bin "$target" -- \
        "$corpus" -runs="$runs" -seed="$seed" -timeout=60 -rss_limit_mb=4096 -max_len=65536 -verbosity=0 \
        -print_final_stats=1
    rm -rf "$corpus"
}

fuzz grammar pipe examples/*.pipe examples/reference/*.pipe compiler/core/std/*.pipe
seeds=$(mktemp -d)
cargo build --quiet --release
for name in tiny_a tiny_48; do
    target/release/pipec build "examples/reference/$name.pipe" --output "$seeds/$name.pprog"
done
fuzz compiler/program pprog "$seeds"/*.pprog
rm -rf "$seeds"

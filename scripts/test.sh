#!/usr/bin/env bash
# Sets up and passes all tests. Needs Rust (rustup or a toolchain of the pinned version), a C compiler and git.
#
#   scripts/test.sh            everything
#   scripts/test.sh STAGE...   only these stages, in this order
#
# Each stage has a time limit, so that a hang is a failure with a name.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=(format lint docs features tests quickstart)
if [ $# -gt 0 ]; then stages=("$@"); fi

stage_format() { limit 120 cargo fmt --all --check; }
stage_lint() { limit 1200 cargo clippy --workspace --all-targets --all-features --locked -- -D warnings; }
stage_docs() { RUSTDOCFLAGS="-D warnings" limit 1200 cargo doc --workspace --no-deps --all-features --locked; }

# Every feature alone, and none.
stage_features() {
    local crate feature
    for crate in coord-connect coord-cli contract-suite; do
        limit 600 cargo check --quiet --locked -p "$crate" --no-default-features
        for feature in $(features "$crate"); do
            limit 600 cargo check --quiet --locked -p "$crate" --no-default-features --features "$feature"
        done
    done
}

stage_tests() { limit 2400 cargo test --workspace --locked; }

# The main job as README names it: all tasks end done, and a second run says so at once.
stage_quickstart() {
    limit 1200 cargo build --release --locked -p coord-cli
    local folder
    folder=$(mktemp -d)
    limit 120 cargo run --release --locked -p coord-cli -- run examples/quickstart.toml --store "sqlite:$folder/coord.db"
    limit 20 cargo run --release --locked -p coord-cli -- run examples/quickstart.toml --store "sqlite:$folder/coord.db"
    rm -rf "$folder"
}

features() { # the features of a crate, without `default`
    sed -n '/^\[features\]/,/^$/p' "$1/Cargo.toml" | sed -n 's/^\([a-z][a-z0-9_-]*\) *=.*/\1/p' | grep -vx default
}

limit() { # limit SECONDS COMMAND...
    local seconds=$1
    shift
    if ! timeout --foreground --kill-after=30 "$seconds" "$@"; then
        echo "failed (or took longer than $seconds s): $*" >&2
        return 1
    fi
}

for stage in "${stages[@]}"; do
    if [ "$(type -t "stage_$stage")" != function ]; then
        echo "there is no stage $stage" >&2
        exit 2
    fi
done
for stage in "${stages[@]}"; do
    echo "== $stage" >&2
    started=$SECONDS
    "stage_$stage"
    echo "== $stage: passed in $((SECONDS - started)) s" >&2
done

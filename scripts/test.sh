#!/usr/bin/env bash
# Sets up and passes all tests. Needs Rust (rustup or a toolchain of the pinned version), a C compiler and git; the live stores besides need
# protoc and the servers, which are installed where this runs as root on Debian.
#
#   scripts/test.sh            everything
#   scripts/test.sh STAGE...   only these stages, in this order
#
# COORD_REQUIRE=redis,etcd,postgres,containers makes it a failure if one of these cannot be tested here; else what is missing is said and left
# out. Each stage has a time limit, so that a hang is a failure with a name.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=(setup format lint docs features tests stores containers quickstart)
if [ $# -gt 0 ]; then stages=("$@"); fi

require=",${COORD_REQUIRE:-},"
export COORD_REQUIRE=${COORD_REQUIRE:-}

have() { command -v "$1" >/dev/null 2>&1; }
required() { case $require in *",$1,"*) return 0 ;; *) return 1 ;; esac; }
postgres_home() { find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -V | tail -1; }
engine() { have dockerd && have docker; }

# What this machine can test.
crates=()      # what is left out of the workspace
stores=()      # the live stores that have a server here
look() {
    crates=()
    stores=()
    have protoc || crates=(--exclude coord-etcd)
    if have redis-server; then stores+=(redis); fi
    if have etcd && have protoc; then stores+=(etcd); fi
    if [ -n "$(postgres_home)" ]; then stores+=(postgres); fi
    # One set of crates and features for all stages, so that each crate is built once and not once more for each of them. Without protoc,
    # everything but etcd.
    if have protoc; then all=(--workspace --all-features --locked); else
        all=(--workspace "${crates[@]}" --features contract-suite/containers,contract-suite/redis,contract-suite/postgres,coord-cli/redis,coord-cli/postgres --locked)
    fi
}

targets() { # the names of the test targets, those of a live store or all others
    local file name kind
    for file in */tests/*.rs */tests/*/main.rs; do
        [ -e "$file" ] || continue
        have protoc || [ "${file%%/*}" != coord-etcd ] || continue
        name=${file#*/tests/}
        name=${name%.rs}
        name=${name%/main}
        case $name in
            stores | redis | redis_* | etcd | etcd_* | postgres | postgres_*) kind=${name%%_*} ;;
            *) kind=rest ;;
        esac
        [ "$kind" != "$1" ] || echo "$name"
    done
}

stage_setup() {
    local missing=()
    have protoc && [ -d /usr/include/google/protobuf ] || missing+=(protobuf-compiler libprotobuf-dev)
    have redis-server || missing+=(redis-server)
    have etcd || missing+=(etcd-server)
    [ -n "$(postgres_home)" ] || missing+=(postgresql)
    [ -x /usr/sbin/pgbouncer ] || have pgbouncer || missing+=(pgbouncer)
    if required containers; then
        engine || missing+=(docker.io)
        [ -x /bin/busybox ] || missing+=(busybox-static)
    fi
    if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && have apt-get; then
        limit 300 apt-get update -qq
        DEBIAN_FRONTEND=noninteractive limit 600 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    look
    local store
    for store in redis etcd postgres; do
        case " ${stores[*]-} " in
            *" $store "*) ;;
            *) absent "$store" "its server is not installed$([ "$store" != etcd ] || have protoc || echo ', or protoc is not')" ;;
        esac
    done
}

absent() { # absent STORE WHY
    echo "== $1 is not tested here: $2" >&2
    if required "$1"; then
        echo "and COORD_REQUIRE names it" >&2
        return 1
    fi
}

stage_format() { limit 120 cargo fmt --all --check; }
stage_lint() { limit 2400 cargo clippy "${all[@]}" --all-targets -- -D warnings; }
stage_docs() { RUSTDOCFLAGS="-D warnings" limit 1200 cargo doc "${all[@]}" --no-deps; }

# Every feature alone, and none.
stage_features() {
    local crate feature
    for crate in coord-connect coord-cli contract-suite; do
        limit 600 cargo check --quiet --locked -p "$crate" --no-default-features
        for feature in $(features "$crate"); do
            if [ "$feature" = etcd ] && ! have protoc; then continue; fi
            limit 600 cargo check --quiet --locked -p "$crate" --no-default-features --features "$feature"
        done
    done
}

# Everything that needs no server.
stage_tests() {
    local rest
    mapfile -t rest < <(targets rest | grep -vx file_backend)
    limit 2400 cargo test "${all[@]}" --no-run
    limit 600 cargo test "${all[@]}" --no-fail-fast --lib --bins --examples
    # It waits for the disk at every write: beside others who do, its clauses run out of time.
    together file_backend
    together "${rest[@]}"
    limit 1200 cargo test "${all[@]}" --doc
}

# The suite, the crates of the live stores and the command, with servers of this machine that the tests start, hurt and stop themselves.
stage_stores() {
    # A clause that hangs is found all the same; one that waits for a busy machine is none that fails.
    export COORD_LOCAL_SERVERS=1 COORD_SUITE_TIMEOUT=400
    limit 2400 cargo test "${all[@]}" --no-run
    local store wanted=()
    # First what besides the suite belongs to a store and takes longest: topologies with failovers, a store in trouble.
    for store in ${stores[@]+"${stores[@]}"}; do
        mapfile -t -O "${#wanted[@]}" wanted < <(targets "$store" | grep -vx -e "$store" -e etcd_topologies)
    done
    together "${wanted[@]}" ${stores[@]+"${stores[@]}"} stores
    # The elections of etcd need processors that are not busy with other tests.
    case " ${stores[*]-} " in *" etcd "*) together etcd_topologies ;; esac
    unset COORD_LOCAL_SERVERS COORD_SUITE_TIMEOUT
}

# Runs test targets, two at a time, for most of them wait for servers, disks and clocks. What one says is shown when it has ended.
together() { # together TARGET...
    local target said arguments
    said=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$said'" EXIT
    for target in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || true; done
        arguments=()
        case $target in redis | etcd | postgres) arguments=(--test-threads 4) ;; esac
        (
            started=$SECONDS
            if limit 1500 cargo test "${all[@]}" --test "$target" -- ${arguments[@]+"${arguments[@]}"} >"$said/$target" 2>&1; then touch "$said/$target.passed"; fi
            cat "$said/$target"
            echo "== $target: $((SECONDS - started)) s" >&2
        ) &
    done
    wait
    local failed=0
    for target in "$@"; do
        if [ ! -e "$said/$target.passed" ]; then
            failed=1
            # Once more in the end, where it is looked for.
            sed -n '/^failures:/,$p' "$said/$target" | head -100
            grep '^test .*FAILED' "$said/$target" | head -20 || true
            echo "failed: $target" >&2
        fi
    done
    [ "$failed" = 0 ] || return 1
    trap - EXIT
    rm -rf "$said"
}

# The suite once more with servers in containers. Without a registry the images are made of the servers that are installed here.
stage_containers() {
    if ! engine || [ "$(id -u)" != 0 ]; then
        absent containers "there is no container engine that this user may start"
        return
    fi
    local folder pid store
    folder=$(mktemp -d)
    dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" -H "unix://$folder/docker.sock" \
        -H tcp://127.0.0.1:23750 --tls=false --iptables=false --ip-forward=false --ip-masq=false --bip 172.30.77.1/24 --ip 127.0.0.1 \
        >"$folder/log" 2>&1 &
    pid=$!
    trap 'stop_engine "$folder" "$pid"' EXIT
    export DOCKER_HOST=tcp://127.0.0.1:23750
    local tries=0
    until docker version >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ] || ! kill -0 "$pid" 2>/dev/null; then
            tail -5 "$folder/log" >&2
            absent containers "the container engine does not start here"
            return
        fi
        sleep 0.1
    done
    limit 300 scripts/images.sh "$folder/images"
    for store in ${stores[@]+"${stores[@]}"}; do
        # The board's clauses judge what lies above the store; they have run on the same servers as processes.
        limit 1200 cargo test "${all[@]}" --test "$store" -- --test-threads 4 B
    done
    unset DOCKER_HOST
    trap - EXIT
    stop_engine "$folder" "$pid"
}

stop_engine() { # stop_engine FOLDER PID: with everything that runs in it
    local containers
    containers=$(docker -H tcp://127.0.0.1:23750 ps -aq 2>/dev/null || true)
    if [ -n "$containers" ]; then
        # shellcheck disable=SC2086
        docker -H tcp://127.0.0.1:23750 rm -f $containers >/dev/null 2>&1 || true
    fi
    kill "$2" 2>/dev/null || true
    wait "$2" 2>/dev/null || true
    ip link del docker0 2>/dev/null || true
    rm -rf "$1"
}

# The main job as README names it: all tasks end done, and a second run says so at once.
stage_quickstart() {
    limit 1500 cargo build "${all[@]}" --bin coord
    local folder coord
    coord=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/coord
    folder=$(mktemp -d)
    limit 120 "$coord" run examples/quickstart.toml --store "sqlite:$folder/coord.db"
    limit 20 "$coord" run examples/quickstart.toml --store "sqlite:$folder/coord.db"
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
look
for stage in "${stages[@]}"; do
    echo "== $stage" >&2
    started=$SECONDS
    "stage_$stage"
    echo "== $stage: passed in $((SECONDS - started)) s" >&2
done

#!/bin/sh
# A charge is killed in the middle. Nobody knows whether the card was charged, so nobody charges it again, until a probe has looked into
# the bank's ledger: `coord effect reconcile -- PROBE`.
#
# Run it with `coord` in the path, or name it: COORD=target/release/coord examples/probe.sh
set -eu

coord=${COORD:-coord}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export COORD_STORE="sqlite:$folder/store.db"
export BANK="$folder/bank"
: > "$BANK"

# Charging: the bank keeps the downstream key, which is the same for all attempts. `$1` says what happens to the host.
cat > "$folder/charge" <<'JOB'
#!/bin/sh
[ "$1" = "dies-before" ] && kill -9 $$
echo "$COORD_DOWNSTREAM_KEY receipt-4711" >> "$BANK"
[ "$1" = "dies-after" ] && kill -9 $$
echo receipt-4711
JOB

# The probe: 0 it was done, and here is the receipt; 10 it was not, and never will be; anything else, 1 above all, with which programs fail
# that meant to say nothing: it cannot tell.
cat > "$folder/probe" <<'PROBE'
#!/bin/sh
[ -r "$BANK" ] || exit 2
awk -v key="$COORD_DOWNSTREAM_KEY" '$1 == key { print $2; found = 1 } END { exit found ? 0 : 10 }' "$BANK"
PROBE
chmod +x "$folder/charge" "$folder/probe"

charge() { "$coord" once --key "$1" --ttl 1s -- "$folder/charge" "$2"; }

for how in dies-before dies-after; do
    code=0
    charge "$how" "$how" || code=$?
    [ "$code" -eq 120 ]
done
# The probe is asked once the hold of the dead attempt has ended, and a while for what may be under way (here: none).
until [ "$("$coord" effect ls --uncertain --format json | grep -c '"actions":\[\]')" -eq 1 ]; do
    "$coord" effect reconcile --settle 1ms -- "$folder/probe"
done

# What was done is replayed; what was not is done now.
[ "$(charge dies-after lives)" = "receipt-4711" ]
[ "$(charge dies-before lives)" = "receipt-4711" ]
"$coord" effect ls
echo "charges: $(wc -l < "$BANK")"
[ "$(wc -l < "$BANK")" -eq 2 ]

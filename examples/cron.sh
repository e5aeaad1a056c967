#!/bin/sh
# A cron job on three hosts that must run once a day, wherever it runs.
#
# Each host has this line in its crontab, and the same store (COORD_STORE, here a file; on real hosts redis://, etcd:// or postgres://):
#
#   0 6 * * *  coord once --key "report-$(date +\%F)" --ttl 30s -- /usr/local/bin/send-report
#
# Here a folder stands for a host. Run it with `coord` in the path, or name it: COORD=target/release/coord examples/cron.sh
set -eu

coord=${COORD:-coord}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export COORD_STORE="sqlite:$folder/store.db"
key="report-$(date +%F)"

# The job: it notes in a ledger that it ran, and says what it did.
cat > "$folder/send-report" <<'JOB'
#!/bin/sh
echo "$COORD_KEY fence $COORD_FENCE attempt $COORD_ATTEMPT" >> "$LEDGER"
sleep 1
echo "report sent to 42 readers"
JOB
chmod +x "$folder/send-report"
export LEDGER="$folder/ledger"

# Six o'clock on three hosts.
for host in one two three; do
    mkdir "$folder/$host"
    (cd "$folder/$host" && "$coord" once --key "$key" -- ../send-report > out) &
done
wait

for host in one two three; do
    echo "$host: $(cat "$folder/$host/out")"
done
echo "executions: $(wc -l < "$LEDGER")"
"$coord" effect history "$key"

[ "$(wc -l < "$LEDGER")" -eq 1 ]
[ "$(cat "$folder"/*/out | sort -u)" = "report sent to 42 readers" ]

# Boots a VM twice: types `again` at its console when it is ready, and `off` the second time.
mkfifo /run/keys
timeout 400 vramd run /inner/ask.toml </run/keys >/run/ask.log 2>&1 &
vm=$!
exec 3>/run/keys
boots=0
for key in again off; do
    boots=$((boots + 1))
    looks=0
    until [ "$(grep -c '@@inner ready' /run/ask.log)" -ge $boots ]; do
        looks=$((looks + 1))
        [ $looks -gt 1000 ] && break
        usleep 200000
    done
    echo $key >&3
done
wait $vm
status=$?
exec 3>&-
cat /run/ask.log
exit $status

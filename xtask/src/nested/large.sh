# Boots a VM with more RAM than this machine has, on a broker whose card is software: what is not touched takes nothing.
vramd serve --config /inner/software.toml >/run/software.log 2>&1 &
broker=$!
until [ -S /run/b.sock ]; do
    if ! kill -0 $broker; then
        cat /run/software.log
        exit 1
    fi
    usleep 100000
done
vramd run /inner/large.toml
status=$?
kill $broker
wait $broker
exit $status

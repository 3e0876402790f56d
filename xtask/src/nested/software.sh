# Boots the VM of a file on a broker whose card is software.
vramd serve --config /inner/software.toml >/run/software.log 2>&1 &
broker=$!
until [ -S /run/b.sock ]; do
    if ! kill -0 $broker; then
        cat /run/software.log
        exit 1
    fi
    usleep 100000
done
vramd run "$1"
status=$?
kill $broker
wait $broker
exit $status

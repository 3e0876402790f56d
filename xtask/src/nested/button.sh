# Boots a VM, presses its power button when it waits for that, and ends as the VM does.
vramd run /inner/button.toml >/run/button.log 2>&1 &
vm=$!
until grep -q "@@waits for the button" /run/button.log; do
    kill -0 $vm || break
    usleep 100000
done
kill $vm
wait $vm
status=$?
cat /run/button.log
exit $status

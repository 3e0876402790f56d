# Takes commands, one a line, and says how each ended. Other processes read and write for this shell: when a child of its
# ends, an orphan of a command too, busybox's own `read` forgets what it has of a line, and its `printf` what it has not written.
echo "@@ready"
number=0
while line=$(head -n 1) && [ -n "$line" ]; do
    # By `command`, because a line that is no shell would end the shell that takes it.
    command eval "$line" </dev/null
    status=$?
    number=$((number + 1))
    # What a command wrote need not have ended its last line.
    /bin/printf '\n@@status %d %d\n' $number $status
done

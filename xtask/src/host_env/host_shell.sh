# Takes commands as guest_init.sh does, once systemd has started all that it starts.
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
export HOME=/ LC_ALL=C.UTF-8 SYSTEMD_COLORS=0 SYSTEMD_PAGER=
cd /run/payload
systemctl is-system-running --wait
echo "@@ready"
number=0
while IFS= read -r line; do
    eval "$line" </dev/null
    status=$?
    number=$((number + 1))
    printf '\n@@status %d %d\n' $number $status
done

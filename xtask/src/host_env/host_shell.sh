# Waits until systemd has started all that it starts; take_commands.sh comes behind this.
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
export HOME=/ LC_ALL=C.UTF-8 SYSTEMD_COLORS=0 SYSTEMD_PAGER=
cd /run/payload
systemctl is-system-running --wait

#!/bin/sh
# The first program of a guest: takes commands from the second serial port, as take_commands.sh does, which comes behind this.
# The first serial port is the kernel's console.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
cd /
mount -t tmpfs tmpfs tmp
mount -t debugfs debugfs /sys/kernel/debug
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo

# Seconds since boot.
uptime_s() {
    read -r now _ </proc/uptime
    echo "$now"
}

# Loads the modules of a list.
load() {
    for name in $(cat "/modules/$1.list"); do
        # One may be there since another list.
        [ -d "/sys/module/$name" ] || insmod "/modules/$name.ko" || return
    done
}

# Runs a program in the second root.
in_mesa() {
    if ! [ -d /mesa/usr ]; then
        load disk && mount -t ext4 -o ro /dev/vda /mesa || return
        for folder in dev proc sys tests tmp; do
            mount --rbind "/$folder" "/mesa/$folder" || return
        done
    fi
    chroot /mesa "$@"
}

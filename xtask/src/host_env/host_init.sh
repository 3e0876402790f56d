#!/bin/sh
# The first program of an emulated Debian host: mounts its disk and becomes its systemd. What is below /run/payload goes with
# it; one of its services takes commands, one a line, from the second serial port.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for name in $(cat /modules/disk.list /modules/host.list /modules/button.list); do
    [ -d "/sys/module/$name" ] || insmod "/modules/$name.ko" || echo "insmod $name: $?"
done
mount -t ext4 /dev/vda /sysroot
mount -t tmpfs -o mode=0755 tmpfs /sysroot/run
cp -a /run/payload /sysroot/run/
units=/sysroot/run/systemd/system
mkdir -p $units/multi-user.target.wants
cat >$units/commands.service <<'UNIT'
[Unit]
Description=Commands of a test

[Service]
ExecStart=/bin/sh /run/payload/host_shell.sh
UNIT
ln -s ../commands.service $units/multi-user.target.wants/
for folder in dev proc sys; do
    mount --move /$folder /sysroot/$folder
done
exec switch_root /sysroot /sbin/init

#!/bin/sh
# The first program of a Linux guest within a guest: shows what it finds, and ends as `end=` of the kernel's command line
# says. `ask` takes a word from the console.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for function in /sys/bus/pci/devices/*; do
    echo "@@pci ${function##*/} $(cat "$function/vendor" "$function/device" "$function/class" | tr '\n' ' ')"
done
# Its base as the guest sees it: nobody moved what the VMM placed.
echo "@@bar0 $(head -n 1 /sys/bus/pci/devices/0000:00:01.0/resource)"
echo "@@cpus $(nproc)"
memory=$(sed -n 's/MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
echo "@@memory $((memory / 1048576)) GiB"
# Loads the modules of a list.
load() {
    for name in $(cat "/modules/$1.list"); do
        insmod "/modules/$name.ko" || echo "insmod $name: $?"
    done
}
echo "@@inner ready"
[ "$end" = ask ] && read -r end
case "$end" in
off) poweroff -f ;;
again) reboot -f ;;
button)
    load button
    # Open before anybody is told to press.
    exec 3</dev/input/event0
    echo "@@waits for the button"
    # One event of the input layer.
    head -c 24 <&3 >/dev/null
    echo "@@the button was pressed"
    poweroff -f
    ;;
driver)
    complaints='nobody cared|nouveau .*(fault|timeout|hung)'
    load driver
    insmod /modules/nouveau.ko $driver && echo "@@card $(ls /sys/class/drm | grep render)"
    # Suspends all devices and lets them go on: the driver moves its memory away and back.
    echo 1 >/sys/module/suspend/parameters/pm_test_delay
    echo devices >/sys/power/pm_test
    for round in 1 2 3; do
        echo freeze >/sys/power/state || echo "@@no suspend"
    done
    # Its line: number, count of the one processor, how they come. A level that comes again was unmasked before.
    set -- $(grep nvkm /proc/interrupts)
    echo "@@line $*"
    [ "$2" -gt 2 ] && echo "@@interrupts came by $3 $4"
    dmesg | grep -E "$complaints" || echo "@@nobody complains"
    poweroff -f
    ;;
disk)
    load disk
    # Made by the first boot, and found again by the second.
    if ! mount -t ext4 /dev/vda /disk; then
        mke2fs /dev/vda >/dev/null && mount -t ext4 /dev/vda /disk && cp /dev/vdb /disk/copy
        echo "@@made"
    fi
    echo "@@copy $(sha256sum </disk/copy)"
    umount /disk
    # What is read from here on comes from the disks.
    echo 3 >/proc/sys/vm/drop_caches
    echo "@@vda $(sha256sum </dev/vda)"
    echo "@@vdb $(sha256sum </dev/vdb)"
    echo >/dev/vdb || echo "@@vdb refuses"
    poweroff -f
    ;;
network)
    load network
    echo "@@mac $(cat /sys/class/net/eth0/address)"
    ip address add 10.7.0.2/24 dev eth0
    ip link set eth0 up
    ping -c 3 10.7.0.1 && echo "@@the host answers"
    cd /disk
    wget -q -O down http://10.7.0.1/down
    echo "@@down $(sha256sum <down)"
    dd if=/dev/urandom of=up bs=1M count=4
    # Ends when the other side has it all.
    nc 10.7.0.1 5000 <up
    echo "@@up $(sha256sum <up)"
    poweroff -f
    ;;
esac

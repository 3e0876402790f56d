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
if [ -e /modules/driver.list ]; then
    dmesg -n 8
    for name in $(cat /modules/driver.list) nouveau; do
        insmod "/modules/$name.ko" || echo "insmod $name: $?"
    done
    grep -i msi /proc/interrupts
    ls /sys/class/drm
fi
echo "@@inner ready"
[ "$end" = ask ] && read -r end
case "$end" in
off) poweroff -f ;;
again) reboot -f ;;
esac

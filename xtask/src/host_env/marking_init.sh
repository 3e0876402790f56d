#!/bin/sh
# The first program of a Linux guest whose boot is timed. The kernel's own time goes into its log just before the mark at
# which the host looks at its clock: the mark's first character, on its way through COM1. Then it waits to be ended.
echo now >/dev/kmsg
echo "@@init"
echo "@@clock $(/bin/busybox dmesg | /bin/busybox tail -n 1)"
/bin/busybox sleep 1000

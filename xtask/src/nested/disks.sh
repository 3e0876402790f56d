# Boots a VM with two disks, and compares what it read from them with what the images hold.
timeout 400 vramd run /inner/disks.toml >/run/disks.log
status=$?
cat /run/disks.log
grep -q "@@vda $(sha256sum </run/disk.img)" /run/disks.log && echo "@@the image is the disk"
grep -q "@@vdb $(sha256sum </run/fixed.img)" /run/disks.log && echo "@@the fixed image is the fixed disk"
grep -q "@@copy $(sha256sum </run/fixed.img)" /run/disks.log && echo "@@the copy is right"
exit $status

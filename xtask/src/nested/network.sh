# Boots a VM with a network device on a tap, has it fetch a file and send one, and compares them with what this side has.
mkdir /run/www
dd if=/dev/urandom of=/run/www/down bs=1M count=4 2>/dev/null
# Nobody writes to it: at the end of its input nc would say goodbye before the guest has sent all.
mkfifo /run/quiet
tunctl -t vramd0
ip address add 10.7.0.1/24 dev vramd0
ip link set vramd0 up
httpd -p 10.7.0.1:80 -h /run/www
nc -l -p 5000 <>/run/quiet >/run/up &
receiver=$!
# The broker lets this user in: socket_users.
chmod 666 /dev/kvm /dev/net/tun
timeout 400 vramd run --user 1000:1000 /inner/network.toml >/run/network.log
status=$?
cat /run/network.log
grep -q "@@down $(sha256sum </run/www/down)" /run/network.log && echo "@@what the guest fetched is right"
grep -q "@@up $(sha256sum </run/up)" /run/network.log && echo "@@what the guest sent is right"
killall httpd
kill $receiver 2>/dev/null
tunctl -d vramd0
exit $status

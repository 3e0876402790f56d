# Starts a VMM, given as a command, and waits until its Linux guest has said when it started. Then shows when that was by
# this kernel's clock, how often the VM left KVM, and what memory the VMM has, and ends it.
tracing=/sys/kernel/debug/tracing
events=$tracing/events
cd /run
rm -f boot.out
mkfifo boot.out
echo mono >$tracing/trace_clock
echo >$tracing/trace
# The first character that init writes, which is no divisor of COM1's clock.
echo 'rw == 1 && port == 0x3f8 && val == 0x40' >$events/kvm/kvm_pio/filter
echo 1 >$events/kvm/kvm_pio/enable
echo 1 >$events/sched/sched_process_exec/enable
echo 1 >$tracing/tracing_on
"$@" </dev/null >boot.out 2>boot.errors &
vm=$!
exec 3<boot.out
while IFS= read -r line <&3; do
    case "$line" in
    *@@clock*) break ;;
    esac
done
echo 0 >$tracing/tracing_on
echo 0 >$events/enable
echo "$line"
grep -m 1 "sched_process_exec: .*pid=$vm " $tracing/trace
grep -m 1 kvm_pio: $tracing/trace
echo "exits $(cat /sys/kernel/debug/kvm/exits)"
cat /proc/$vm/smaps
kill -0 $vm || cat boot.errors
# Anything milder may be a question to the guest.
kill -9 $vm
wait $vm
exec 3<&-
true

# Functions for the nested host's shell: each runs or asks one of two VMs, "a" and "b", whose consoles are pipes and files in /run.

# Starts a VM. Descriptors 4 and 5 are the keys of their consoles.
vm_start() {
    rm -f "/run/$1.in"
    mkfifo "/run/$1.in"
    : >"/run/$1.out"
    vramd run "/inner/debian-$1.toml" <"/run/$1.in" >"/run/$1.out" 2>"/run/$1.err" &
    eval "process_$1=$!; sent_$1=0"
    case "$1" in
    a) exec 4>"/run/$1.in" ;;
    b) exec 5>"/run/$1.in" ;;
    esac
}

# Types a line.
vm_type() {
    case "$1" in
    a) echo "$2" >&4 ;;
    b) echo "$2" >&5 ;;
    esac
}

# Waits until a line on a VM's console has matched a pattern.
vm_says() {
    until grep -q "$2" "/run/$1.out"; do
        if ! eval "kill -0 \$process_$1" 2>/dev/null; then
            echo "VM $1 has ended: $(tail -n 1 "/run/$1.err")"
            return 1
        fi
        sleep 0.5
    done
}

# Waits for the login prompt and logs in. The console does not show what is typed from then on.
vm_login() {
    vm_says "$1" ' login: ' || return
    vm_type "$1" root
    vm_says "$1" 'root@.*#' || return
    vm_type "$1" "dmesg -n 1; stty -echo; PS1=; PS2=; printf '\\n@@%s\\n' ready"
    vm_says "$1" '^@@ready'
}

# Begins a command in a VM.
vm_begin() {
    eval "sent_$1=\$((sent_$1 + 1)); vm_number=\$sent_$1"
    vm_type "$1" "printf '\\n@@begin $vm_number\\n'; { $2; } 2>&1 </dev/null; printf '\\n@@done $vm_number %d\\n' \$?"
}

# Waits for the end of the last command in a VM and shows its output. Its status is this one's.
vm_end() {
    eval "vm_number=\$sent_$1"
    vm_says "$1" "^@@done $vm_number " || return
    tr -d '\r' <"/run/$1.out" | sed -n "/^@@begin $vm_number\$/,/^@@done $vm_number /p" >/run/said
    sed '1d;$d' /run/said
    return "$(sed -n "s/^@@done $vm_number //p" /run/said)"
}

# Runs a command in a VM.
in_vm() {
    vm_begin "$1" "$2" && vm_end "$1"
}

# Switches a VM off and waits for its VMM, whose status and last line this has.
vm_off() {
    vm_type "$1" 'systemctl poweroff'
    eval "wait \$process_$1"
    vm_status=$?
    # What the console has before it need not have ended its line.
    grep -a -o "vm $1: .*" "/run/$1.out" | tail -n 1
    tail -n 1 "/run/$1.err"
    return $vm_status
}

package doctor

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func (m Machine) ioUring(Target) []Finding {
	// Documentation/admin-guide/sysctl/kernel.rst
	value := m.read("proc/sys/kernel/io_uring_disabled")
	f := Finding{
		"io_uring", Warning, "",
		"Without io_uring, threads do disk I/O and block, which costs throughput and CPU time.",
		"sysctl kernel.io_uring_disabled=0",
	}
	if value == "1" {
		f.Fix += ", or kernel.io_uring_group=GID with a group of the target's user"
	}
	err := m.IOUring()
	switch {
	case err != nil:
		f.Found = err.Error()
		if value == "" || value == "0" {
			f.Fix = "allow io_uring_setup, io_uring_enter and io_uring_register in the filter of " +
				"system calls (SystemCallFilter= of the unit, seccomp profile of the container)"
		}
	case value == "1":
		f.Severity = Note
		f.Found = "this user may use it; kernel.io_uring_disabled is 1, so only CAP_SYS_ADMIN " +
			"and the group " + m.read("proc/sys/kernel/io_uring_group") + " may"
	default:
		return []Finding{ok("io_uring", "this user may use it")}
	}
	return []Finding{f}
}

// Listener is a TCP address of the configuration.
type Listener struct {
	Name    string // "tcp 10.0.0.1:4420"
	Address netip.AddrPort
}

// tcpListen is the state of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
const tcpListen = "0A"

// InUse reports whether a process listens at a TCP address, and returns the inode of its socket.
func (m Machine) InUse(at netip.AddrPort) (inode string, ok bool) {
	for _, table := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		for line := range strings.Lines(m.read(table)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != tcpListen {
				continue
			}
			a, known := parseAddress(f[1])
			if known && a.Port() == at.Port() && (a.Addr() == at.Addr() ||
				a.Addr().IsUnspecified() || at.Addr().IsUnspecified()) {
				return f[9], true
			}
		}
	}
	return "", false
}

// parseAddress parses "0100007F:1144" of /proc/net/tcp, words in the machine's byte order.
func parseAddress(text string) (netip.AddrPort, bool) {
	addr, port, _ := strings.Cut(text, ":")
	b, err1 := hex.DecodeString(addr)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err1 != nil || err2 != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for w := b; len(w) > 0; w = w[4:] {
		binary.NativeEndian.PutUint32(w, binary.BigEndian.Uint32(w))
	}
	a, known := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), known
}

func (m Machine) listeners(t Target) (list []Finding) {
	for _, l := range t.Listeners {
		inode, used := m.InUse(l.Address)
		name, program := m.holder(inode)
		switch {
		case l.Address.Port() == 0 || !used:
			list = append(list, ok("listener", "%s is free", l.Name))
		case program != "" && program == m.read("proc/self/comm"):
			list = append(list, ok("listener", "%s is served by %s", l.Name, name))
		default:
			name = cmp.Or(name,
				"the kernel or a process that this user may not see (ss -ltnp as root)")
			list = append(list, Finding{
				"listener", Warning, fmt.Sprintf("%s is in use by %s", l.Name, name),
				"The target waits until the address is free.",
				"stop the program that listens there, or set another port of the listener",
			})
		}
	}
	return list
}

// acceptsConnections is __SO_ACCEPTCON (linux/net.h), a flag in /proc/net/unix.
const acceptsConnections = 1 << 16

// Running returns the name of the process that listens at one of the control sockets, and the
// socket. The name is "a process of another user" if the process cannot be seen.
func (m Machine) Running(sockets []string) (name, socket string, ok bool) {
	for line := range strings.Lines(m.read("proc/net/unix")) {
		// Num RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(line)
		if len(f) != 8 {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 64)
		if err != nil || flags&acceptsConnections == 0 {
			continue
		}
		if slices.Contains(sockets, f[7]) {
			name, _ = m.holder(f[6])
			return cmp.Or(name, "a process of another user"), f[7], true
		}
	}
	return "", "", false
}

// control looks for a running target, or for a place for the control socket.
func (m Machine) control(t Target) []Finding {
	if name, socket, runs := m.Running(t.Sockets); runs {
		return []Finding{ok("control socket", "%s serves at %s", name, socket)}
	}
	if len(t.Sockets) == 0 {
		return nil
	}
	dir := filepath.Dir(t.Sockets[0])
	if err := m.writable(dir); err != nil {
		return []Finding{{
			"control socket", Note, fmt.Sprintf("no target runs at %s, and this user cannot make "+
				"the socket: %v", t.Sockets[0], err),
			"Without it status, reload and the like do not reach the target.",
			"RuntimeDirectory=nvmf-target in the systemd unit, or control.socket",
		}}
	}
	return []Finding{ok("control socket", "no target runs at %s, and this user may make the socket",
		t.Sockets[0])}
}

func (m Machine) state(t Target) []Finding {
	if t.StateDir == "" {
		return nil
	}
	if err := m.writable(t.StateDir); err != nil {
		return []Finding{{
			"state directory", Note, fmt.Sprintf("this user cannot write %s: %v", t.StateDir, err),
			"A target of this user does not start without it.",
			"StateDirectory=nvmf-target in the systemd unit, or run this as the target's user",
		}}
	}
	return []Finding{ok("state directory", "this user may write %s", t.StateDir)}
}

// writable reports whether files can be created in a directory, or the directory if it is missing.
func (m Machine) writable(dir string) error {
	for {
		err := m.Access(m.path(dir), unix.W_OK|unix.X_OK)
		if err != unix.ENOENT || dir == filepath.Dir(dir) {
			if err != nil {
				err = fmt.Errorf("%s: %w", dir, err)
			}
			return err
		}
		dir = filepath.Dir(dir)
	}
}

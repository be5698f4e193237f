package uring

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config describes a Ring.
type Config struct {
	// EventFD is written by the kernel when an armed ring has something to Poll for.
	EventFD int
	// Memory is registered once, so that the kernel need not pin its pages for each transfer; it
	// may be nil. It stays mapped until Close. If the process may not lock that much
	// (RLIMIT_MEMLOCK), it is used unregistered.
	Memory []byte
	// Commands allows StartCommand (Linux 5.19).
	Commands bool
}

const (
	entries   = 512
	slots     = 2048
	files     = 1024
	bufferMax = 1 << 30 // the size limit of a registered buffer
)

// modes are the ways in which the kernel finishes operations, best first, for kernels from 6.1,
// 5.19 and 5.10 on. With the first one it does so when it is entered, and never interrupts. All
// rings start disabled, because another thread than the one that makes a ring uses it.
var modes = []uint32{
	setupDisabled | setupSubmitAll | setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag,
	setupDisabled | setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag,
	setupDisabled,
}

// create makes a ring. Any goroutine may call it, and it may take milliseconds.
func create(cfg Config, entries, slots int) (*Ring, error) {
	var p params
	fd, err := setup(cfg, entries, 2*slots, &p)
	if err != nil {
		return nil, err
	}
	r := &Ring{cfg: cfg, fd: fd, flags: p.flags, batch: atPoll}
	if err := r.initialise(&p, slots); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// setup is io_uring_setup(2) in the best mode that the kernel supports.
func setup(cfg Config, entries, completions int, p *params) (int, error) {
	for _, mode := range modes {
		if cfg.Commands {
			mode |= setupSQE128 | setupCQE32
		}
		*p = params{flags: mode | setupCQSize, cqEntries: uint32(completions)}
		fd, _, e := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries),
			uintptr(unsafe.Pointer(p)), 0)
		switch e {
		case 0:
			return int(fd), nil
		case unix.EINVAL: // a flag unknown to this kernel
		default:
			return -1, refusal(e)
		}
	}
	return -1, refusal(unix.EINVAL)
}

// refusal returns the reason why there is no io_uring, with a hint.
func refusal(e syscall.Errno) error {
	hint := ""
	switch e {
	case unix.ENOSYS:
		hint = " (the kernel, or a filter of system calls around this process, does not have it; " +
			"Linux 5.10 or later is needed)"
	case unix.EPERM:
		hint = " (a filter of system calls forbids it: allow io_uring_setup, io_uring_enter and " +
			"io_uring_register, with Docker by --security-opt seccomp=PROFILE)"
		if b, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled"); err == nil &&
			strings.TrimSpace(string(b)) != "0" {
			hint = " (the administrator forbids it: sysctl kernel.io_uring_disabled=0 allows it)"
		}
	case unix.ENOMEM:
		hint = " (raise the limit of locked memory: ulimit -l, LimitMEMLOCK=)"
	}
	return fmt.Errorf("io_uring_setup: %w%s", e, hint)
}

// initialise maps the queues and registers eventfd, memory and a table of files.
func (r *Ring) initialise(p *params, nslots int) (err error) {
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 {
		return fmt.Errorf("io_uring lacks features: %w (Linux 5.10 or later is needed)",
			unix.ENOSYS)
	}
	if p.flags&setupSQE128 != 0 {
		r.wide = 1
	}
	nsqes, ncqes := p.sqEntries<<r.wide, p.cqEntries<<r.wide
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+ncqes*uint32(unsafe.Sizeof(cqe{})))
	const prot, how = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.ring, err = unix.Mmap(r.fd, offRing, int(size), prot, how); err != nil {
		return fmt.Errorf("map the queues of io_uring: %w", err)
	}
	if r.table, err = unix.Mmap(r.fd, offSQEs, int(nsqes)*int(unsafe.Sizeof(sqe{})), prot,
		how); err != nil {
		return fmt.Errorf("map the entries of io_uring: %w", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.ring[off])) }
	r.sqHead, r.sqTail, r.sqFlags, r.sqMask = word(p.sq.head), word(p.sq.tail), word(p.sq.flags),
		*word(p.sq.mask)
	r.cqHead, r.cqTail, r.cqFlags, r.cqMask = word(p.cq.head), word(p.cq.tail), word(p.cq.flags),
		*word(p.cq.mask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.table[0])), nsqes)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.ring[p.cq.cqes])), ncqes)
	for i := range p.sqEntries {
		*word(p.sq.array + i*4) = i // entries are used in table order
	}
	r.slots, r.free = make([]Completer, nslots), make([]int32, nslots)
	for i := range r.free {
		r.free[i] = int32(nslots - 1 - i)
	}
	*r.cqFlags = cqEventFDDisabled
	fd := int32(r.cfg.EventFD)
	if err := r.register(registerEventFD, unsafe.Pointer(&fd), 1); err != nil {
		return fmt.Errorf("register the eventfd with io_uring: %w", err)
	}
	r.registerMemory()
	sparse := filesRegister{nr: files, flags: filesSparse}
	// Linux 5.19
	if r.register(registerFiles2, unsafe.Pointer(&sparse), unsafe.Sizeof(sparse)) == nil {
		r.files = make([]int32, files)
		for i := range r.files {
			r.files[i] = -1
		}
	}
	return nil
}

// registerMemory registers Config.Memory if possible.
func (r *Ring) registerMemory() {
	var iov []unix.Iovec
	for b := r.cfg.Memory; len(b) > 0; {
		n := min(len(b), bufferMax)
		iov = append(iov, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(n)})
		b = b[n:]
	}
	if len(iov) == 0 {
		return
	}
	if r.refused = r.register(registerBuffers, unsafe.Pointer(&iov[0]),
		uintptr(len(iov))); r.refused == nil {
		r.base, r.size = address(unsafe.Pointer(unsafe.SliceData(r.cfg.Memory))),
			uint64(len(r.cfg.Memory))
	}
}

// Refused returns the reason why Config.Memory is not registered, nil if it is registered or empty.
func (r *Ring) Refused() error { return r.refused }

// register is io_uring_register(2).
func (r *Ring) register(what uintptr, arg unsafe.Pointer, n uintptr) error {
	_, _, e := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), what, uintptr(arg), n, 0,
		0)
	if e != 0 {
		return e
	}
	return nil
}

// Close closes the ring, which has nothing outstanding. The kernel frees memory and files later.
func (r *Ring) Close() error {
	if n := r.Outstanding(); n > 0 {
		return fmt.Errorf("close io_uring: %d operations are outstanding", n)
	}
	var errs []error
	for _, m := range [][]byte{r.ring, r.table} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// Available returns the reason why rings cannot be made here, with a hint; nil if they can.
func Available() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := create(Config{EventFD: fd}, 1, 1)
	if err != nil {
		return err
	}
	return r.Close()
}

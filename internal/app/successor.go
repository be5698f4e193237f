package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
)

// This file replaces a process by its successor, which listens before the process ends (ADR 0047).
// The two talk over a socket. The successor reads its configuration and reports the result. The
// process sends the ports of RDMA devices. The successor listens there and reports the result. It
// opens nothing else before the process, and with it the socket, has ended.

const (
	// predecessorName is the name of the socket among the descriptors of the successor, and
	// asSuccessor its LISTEN_PID: its process ID is not known before.
	predecessorName, asSuccessor = "predecessor", "successor"
	// readyWithin bounds the time in which the successor reads its configuration and runs all
	// programs that print keys. listensWithin bounds the time without listeners of RDMA devices.
	readyWithin, listensWithin = 40 * time.Second, 3 * time.Second
	// startsWithin bounds its start, as systemd does for other starts (DefaultTimeoutStartSec).
	startsWithin = 90 * time.Second
)

// message is sent by both processes.
type message struct {
	Control string             `json:",omitempty"` // the control socket of the successor
	Listen  []listeners.Handed `json:",omitempty"`
	Err     string             `json:",omitempty"`
}

// successor is the process that goes on when this one has ended.
type successor struct {
	pid     int
	talk    net.Conn // must stay open until this process ends
	kill    func()   // returns when it has ended
	hangUp  func()   // sends SIGHUP
	control string   // its control socket
}

// startSuccessor starts the program on disk, with the arguments of this process and descriptors.
func startSuccessor(names []string, fds []uintptr) (*successor, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "successor"), pair[1]
	defer func() { _ = errors.Join(mine.Close(), unix.Close(theirs)) }()
	talk, err := net.FileConn(mine)
	if err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "WATCHDOG_PID=")
	})
	process := -1
	pid, err := syscall.ForkExec(program, os.Args, &syscall.ProcAttr{
		Env: append(env, "LISTEN_PID="+asSuccessor, "LISTEN_FDS="+strconv.Itoa(len(fds)+1),
			"LISTEN_FDNAMES="+strings.Join(append(names, predecessorName), ":")),
		Files: slices.Concat([]uintptr{0, 1, 2}, fds, []uintptr{uintptr(theirs)}),
		// To systemd, a child of this process would be an unknown process, which it kills without
		// SIGTERM.
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT, PidFD: &process},
	})
	if err == nil && process < 0 {
		err = errors.Join(errors.ErrUnsupported, syscall.Kill(pid, syscall.SIGKILL))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("execute %s: %w", program, err), talk.Close())
	}
	return &successor{
		pid: pid, talk: talk,
		hangUp: func() { _ = unix.PidfdSendSignal(process, unix.SIGHUP, nil, 0) },
		kill: sync.OnceFunc(func() {
			_ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0)
			for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
				_, err = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, -1)
			}
			_ = errors.Join(unix.Close(process), talk.Close())
		}),
	}, nil
}

// hear waits for a message of the successor.
func (n *successor) hear(within time.Duration) error {
	_ = n.talk.SetReadDeadline(time.Now().Add(within))
	var m message
	if err := json.NewDecoder(n.talk).Decode(&m); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it does not answer within %v", within)
	} else if err != nil {
		return errors.New("it has ended; the log has the reason")
	}
	if m.Err != "" {
		return errors.New(m.Err)
	}
	if m.Control != "" {
		n.control = m.Control
	}
	return nil
}

// succession replaces a program by its successor.
type succession struct {
	server  *Server
	running atomic.Bool
	next    atomic.Pointer[successor] // which listens; nil before
	begin   chan struct{}             // has room for one: the client knows, stop now
	hangups <-chan os.Signal
	hungUp  atomic.Bool // a SIGHUP was received, and is not carried out yet
}

// errSucceeded is the result of a program that its successor continues. It is an error, so that
// systemd restarts the service if it does not follow the successor.
var errSucceeded = errors.New("replaced by its successor")

func refuseRestart(what, hint string) error {
	return control.NewProblem(http.StatusConflict, what, hint)
}

// noRestart is Options.Restart of a server without systemd.
func noRestart(context.Context) (*control.Succession, func(), error) {
	return nil, nil, refuseRestart("only a service of systemd can be replaced by another process",
		"Stop the target, and start it again.")
}

// restart starts a successor. If it returns one, the successor listens at the ports of RDMA
// devices, and end ends this process. Otherwise this process goes on.
func (r *succession) restart(ctx context.Context) (*control.Succession, func(), error) {
	if !r.running.CompareAndSwap(false, true) {
		return nil, nil, refuseRestart("the target is being restarted", "")
	}
	release := r.server.engine.Hold()
	defer release()
	r.server.listeners.Freeze(true)
	next, err := startSuccessor(r.server.opts.Sockets.Files())
	if err == nil {
		r.server.log.Info("changes of the configuration wait for a new process to start",
			"timeout", readyWithin)
		err = r.prepare(ctx, next)
	}
	if err != nil {
		r.server.listeners.Freeze(false)
		r.running.Store(false)
		return nil, nil, refuseRestart("the target goes on, because the new process failed: "+
			err.Error(), "")
	}
	r.next.Store(next)
	answer := &control.Succession{PID: os.Getpid(), Successor: next.pid}
	if next.control != controlSocket(r.server.atStart, r.server.opts.ControlSocket) {
		answer.ControlSocket = next.control
	}
	return answer, func() { r.begin <- struct{}{} }, nil
}

// prepare returns an error if the successor cannot go on. Then the successor has ended, and this
// process listens. The caller holds the configuration.
func (r *succession) prepare(ctx context.Context, next *successor) (err error) {
	killed := context.AfterFunc(ctx, next.kill)
	defer killed()
	var list []listeners.Handed
	if err = next.hear(readyWithin); err == nil {
		list, err = r.server.listeners.HandOver()
	}
	if err == nil {
		err = json.NewEncoder(next.talk).Encode(message{Listen: list})
	}
	if err == nil {
		err = next.hear(listensWithin)
	}
	if !killed() {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		next.kill()
		r.server.listeners.TakeBack()
		return err
	}
	r.server.engine.Replaced() // the successor would not know of a change
	return nil
}

// stop stops the server after the program has ended with err. If that is errSucceeded, the
// successor goes on when this process exits; a signal meanwhile ends both.
func (r *succession) stop(err error, signals <-chan os.Signal, log *slog.Logger) error {
	replaced, abandon := errors.Is(err, errSucceeded), (func())(nil)
	limit := r.server.current().ShutdownTimeout
	if replaced { // there is no sign of life for systemd's watchdog before the successor serves
		notify(log, fmt.Sprintf("STATUS=draining, then process %d goes on\nEXTEND_TIMEOUT_USEC=%d",
			r.next.Load().pid, (limit+startsWithin).Microseconds()))
		abandon = func() {
			replaced, err = false, nil
			r.next.Load().kill()
			notify(log, stopping)
		}
	} else {
		notify(log, stopping)
	}
	stopped := stop(r.server, limit, signals, abandon)
	err = errors.Join(err, stopped) // abandon may have changed it
	next := r.next.Load()
	switch {
	case replaced:
		notify(log, fmt.Sprintf("MAINPID=%d", next.pid))
		if r.hungUp.Load() || len(r.hangups) > 0 {
			next.hangUp()
		}
	case next != nil: // a client has asked for it in the last moment
		next.kill()
	}
	return err
}

// predecessor is the process that a successor replaces.
type predecessor struct {
	talk    net.Conn
	control string // the control socket of this process
}

// inherit returns the descriptors from the service manager or from a predecessor, which is nil if
// there is none.
func inherit() (files []*os.File, before *predecessor) {
	if os.Getenv("LISTEN_PID") == asSuccessor {
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	files = activation.Files(true)
	last := len(files) - 1
	if last < 0 || files[last].Name() != predecessorName {
		return files, nil
	}
	talk, err := net.FileConn(files[last])
	_ = files[last].Close()
	if err != nil {
		return files[:last], nil
	}
	return files[:last], &predecessor{talk: talk}
}

// say sends the predecessor an error, or none. It may have ended.
func (p *predecessor) say(err error) {
	if p == nil {
		return
	}
	m := message{Control: p.control}
	if err != nil {
		m.Err = err.Error()
	}
	_ = json.NewEncoder(p.talk).Encode(m)
}

// wait waits until the predecessor has ended, or for a signal. It returns the RDMA stack of
// devices, which listens where the predecessor did.
func (p *predecessor) wait(v verbs.Provider, signals <-chan os.Signal) (*early, error) {
	e := &early{Provider: v}
	if p == nil {
		return e, nil
	}
	ended := make(chan error, 1)
	go func() {
		defer func() { _ = p.talk.Close() }()
		p.say(nil)
		in, m := json.NewDecoder(p.talk), message{}
		err := in.Decode(&m)
		if err != nil {
			ended <- nil
			return
		}
		err = e.open(m.Listen)
		if p.say(err); err == nil {
			_ = in.Decode(&m)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return e, err
	case sig := <-signals:
		return nil, fmt.Errorf("ended before its predecessor: %v", sig)
	}
}

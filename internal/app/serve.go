// Package app assembles a configuration into reactors, volumes, a target, transports and
// listeners, and runs the result as a program: start, readiness, signals, orderly stop.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/logs"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Serve runs the target until SIGTERM or SIGINT: its announcement to stdout, its log to stderr.
func Serve(file, version string, stdout, stderr io.Writer) error {
	hangups, endHangups := catchHangups() // before the configuration is read
	defer endHangups()
	inherited, before := inherit() // first, so that no program for a key inherits them
	load := func(options ...config.Option) (*config.Config, error) {
		return config.Load(file, os.Environ(), volumes.Backends, options...)
	}
	c, err := load()
	if err != nil {
		before.say(err)
		return err
	}
	level := new(slog.LevelVar)
	level.Set(c.Log.Level)
	log, closeLog := logs.Open(c.Log.JSON, level, stderr)
	defer closeLog()
	announced := logs.NewSink(stdout, func(lines int) {
		log.Warn("output was dropped", "lines", lines)
	})
	defer announced.Close(logs.Patience)
	// Writing to a closed pipe is an error of the log and does not end the program.
	signal.Ignore(syscall.SIGPIPE)
	// Before anything is started, so that an early signal ends in an orderly stop, too.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	if before != nil {
		before.control = controlSocket(c, control.DefaultSocket())
	}
	stack, err := before.wait(ibv.New(), signals)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	up := make(chan string) // served since the start
	ended := make(chan struct{})
	say := func(text string) {
		select {
		case up <- text:
		case <-ended:
		}
	}
	sockets := listeners.SystemdSockets(log, inherited)
	var s *Server
	next := &succession{begin: make(chan struct{}, 1), hangups: hangups}
	options := Options{
		Config: c, Log: log, Level: level, Version: version, Verbs: stack, Applied: stack.settle,
		Soft: func(reactors int, iwarp bool) *soft.Provider {
			return softProvider(soft.Options{Engines: reactors, IWARP: iwarp, Log: log}, sockets,
				c.Listeners)
		},
		StateDir: state.DefaultDir(os.Getenv), ControlSocket: control.DefaultSocket(), Load: load,
		Sockets: sockets,
		ListenerUp: func(a fabric.Addr) {
			commands := connectCommands(a, s.listeners.Encrypted(a), s.current().Subsystems,
				reachable)
			say(fmt.Sprintf("now on %s as well:\n%s", a, commands))
		},
		NamespaceUp: func(nqn string, nsid uint32) {
			say(fmt.Sprintf("now with namespace %d of %s as well\n", nsid, nqn))
		},
		Failed: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	}
	if sockets != nil {
		options.Restart = next.restart
	}
	s = NewServer(options)
	next.server = s
	err = s.Start()
	if err == nil {
		d := program{
			server: s, log: log, out: announced, replaced: next.begin, hungUp: &next.hungUp,
		}
		if c.Log.JSON {
			d.out = logs.Lines{Logger: log}
		}
		err = d.run(signals, hangups, up, failed)
	}
	close(ended)
	return next.stop(err, signals, log)
}

// softProvider returns the RDMA stack without a device for listeners; sockets may be nil.
func softProvider(o soft.Options, sockets *listeners.Sockets, list []config.Listener,
) *soft.Provider {
	if sockets == nil {
		return soft.New(o)
	}
	o.MPA.Sockets, o.CM.Memory, o.Sockets = sockets, sockets.Memory, sockets
	p := soft.New(o)
	if !o.IWARP {
		sockets.Requests = p.TakeRequests
		used := slices.ContainsFunc(list, func(l config.Listener) bool {
			return l.Transport == nvme.TransportRDMA &&
				(l.Stack == fabric.AnyStack || l.Stack == fabric.SoftStack)
		})
		if used && sockets.KeptUDP() { // hosts of a killed process learn of it now
			_, _ = p.Devices() // Listen reports an error
		}
	}
	return p
}

// catchHangups returns the SIGHUPs received from now on. A pending one stands for several, and
// SIGHUPs during the start are carried out once the target has started.
func catchHangups() (hangups <-chan os.Signal, end func()) {
	h := make(chan os.Signal, 1)
	signal.Notify(h, syscall.SIGHUP)
	return h, func() { signal.Stop(h) }
}

// program is the program between start and stop.
type program struct {
	server *Server
	log    *slog.Logger
	out    io.Writer
	// replaced gets a value when a successor is ready.
	replaced <-chan struct{}
	hungUp   *atomic.Bool // see succession
}

func (d *program) run(signals, hangups <-chan os.Signal, up <-chan string,
	failed <-chan error,
) error {
	a := d.server.announcement()
	_, _ = io.WriteString(d.out, a.text(reachable))
	notify(d.log, "READY=1\nSTATUS="+a.summary())
	tick, endWatchdog := watchdog(d.log)
	defer endWatchdog()
	ended := make(chan struct{})
	defer close(ended)
	go d.reloads(hangups, ended)
	for {
		select {
		case sig := <-signals:
			d.log.Info("stopping", "signal", sig)
			return nil
		case text := <-up:
			_, _ = io.WriteString(d.out, text)
			notify(d.log, "STATUS="+d.server.announcement().summary())
		case err := <-failed:
			return err
		case <-d.replaced:
			return errSucceeded
		case <-tick:
			if d.server.alive(aliveTimeout) {
				notify(d.log, "WATCHDOG=1")
			}
		}
	}
}

// reloads applies the file after each SIGHUP until ended is closed, and tells sd_notify(3).
func (d *program) reloads(hangups <-chan os.Signal, ended <-chan struct{}) {
	for {
		select {
		case <-hangups:
			d.hungUp.Store(true)
		case <-ended:
			return
		}
		notify(d.log, fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic().Microseconds()))
		_, err := d.server.Reload("signal", syscall.SIGHUP.String()) // it logs the result
		d.hungUp.Store(errors.Is(err, engine.ErrReplaced))
		select {
		case <-ended: // the state is STOPPING now
			return
		default:
			notify(d.log, "READY=1\nSTATUS="+d.server.announcement().summary())
		}
	}
}

const stopping = "STOPPING=1\nSTATUS=draining"

// stop ends the server within the limit, or at once at a second signal. Unless abandon is nil, no
// signal has come yet, and the first one calls it.
func stop(s *Server, limit time.Duration, signals <-chan os.Signal, abandon func()) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	deadline := time.AfterFunc(limit,
		func() { cancel(fmt.Errorf("not drained within shutdown_timeout, %v", limit)) })
	defer deadline.Stop()
	finished := make(chan error, 1)
	go func() { finished <- s.Stop(ctx) }()
	for {
		select {
		case err := <-finished:
			return err
		case sig := <-signals:
			if abandon != nil {
				abandon()
				abandon = nil
				continue
			}
			cancel(fmt.Errorf("second signal: %v", sig))
		}
	}
}

// notify sends a state to the service manager, if there is one (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify the service manager", "err", err)
	}
}

// watchdog ticks twice in each interval of the service manager's watchdog; never if it is off.
func watchdog(log *slog.Logger) (tick <-chan time.Time, end func()) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("no watchdog", "err", err)
	}
	if err != nil || interval <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(interval / 2)
	return t.C, t.Stop
}

// monotonic returns the time since an unspecified moment, on the clock of the service manager.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it exists (clock_gettime(2))
	return time.Duration(t.Nano())
}

// aliveTimeout is the longest time that a healthy reactor takes to answer.
const aliveTimeout = 2 * time.Second

// alive reports whether every reactor answers within the timeout.
func (s *Server) alive(timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := s.workers.States(ctx); err != nil {
		s.log.Error("a reactor does not answer")
		return false
	}
	return true
}

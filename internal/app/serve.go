// Package app assembles a configuration into reactors, backends, a target, transports and
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
	"syscall"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// Serve runs the target until SIGTERM or SIGINT. It writes what is served and how to connect to
// stdout, and the log to stderr.
func Serve(file, version string, stdout, stderr io.Writer) error {
	c, err := config.Load(file, os.Environ(), backends)
	if err != nil {
		return err
	}
	log, closeLog := openLog(c.Log, stderr)
	defer closeLog()
	announced := newSink(stdout, func(lines int) { log.Warn("output was dropped", "lines", lines) })
	defer announced.close(outputPatience)
	// Writing to a closed pipe is an error of the log, not the end of the program.
	signal.Ignore(syscall.SIGPIPE)
	// Before anything is started, so that an early signal ends in an orderly stop, too.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	failed := make(chan error, 1)
	up := make(chan string, len(c.Listeners)+len(all(c))) // what is served since the start
	s := NewServer(Options{
		Config: c, Log: log, Version: version, Verbs: ibv.New(),
		ControlSocket: control.DefaultSocket(),
		ListenerUp: func(a fabric.Addr) {
			up <- fmt.Sprintf("now on %s as well:\n%s", a, connectCommands(a, nqns(c), reachable))
		},
		NamespaceUp: func(nqn string, nsid uint32) {
			up <- fmt.Sprintf("now with namespace %d of %s as well\n", nsid, nqn)
		},
		Failed: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	err = s.Start()
	if err == nil {
		d := program{server: s, log: log, out: announced}
		err = d.run(signals, up, failed)
	}
	return errors.Join(err, stop(s, c.ShutdownTimeout, signals, log))
}

// program is the program between start and stop.
type program struct {
	server *Server
	log    *slog.Logger
	out    io.Writer
}

func (d *program) run(signals <-chan os.Signal, up <-chan string, failed <-chan error) error {
	a := d.server.announcement()
	_, _ = io.WriteString(d.out, a.text(reachable))
	notify(d.log, "READY=1\nSTATUS="+a.summary())
	tick, endWatchdog := watchdog(d.log)
	defer endWatchdog()
	for {
		select {
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				d.log.Warn("reload is not supported yet: restart to use a changed configuration",
					"signal", sig)
				continue
			}
			d.log.Info("stopping", "signal", sig)
			return nil
		case text := <-up:
			_, _ = io.WriteString(d.out, text)
			notify(d.log, "STATUS="+d.server.announcement().summary())
		case err := <-failed:
			return err
		case <-tick:
			if d.server.alive(aliveTimeout) {
				notify(d.log, "WATCHDOG=1")
			}
		}
	}
}

// stop ends the server within the limit, or at once at a second signal.
func stop(s *Server, limit time.Duration, signals <-chan os.Signal, log *slog.Logger) error {
	notify(log, "STOPPING=1\nSTATUS=draining")
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
			if sig != syscall.SIGHUP {
				cancel(fmt.Errorf("second signal: %v", sig))
			}
		}
	}
}

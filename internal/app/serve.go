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
)

// Serve runs the target until SIGTERM or SIGINT. stdout gets what is served and how to connect,
// stderr the log.
func Serve(file, version string, stdout, stderr io.Writer) error {
	c, err := config.Load(file, os.Environ(), backends)
	if err != nil {
		return err
	}
	log := newLogger(c.Log, stderr)
	// Before anything is started: a signal that comes early still ends in an orderly stop.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	failed := make(chan error, 1)
	up := make(chan fabric.Addr, len(c.Listeners))
	s := NewServer(Options{
		Config: c, Log: log, Version: version, Verbs: ibv.New(),
		ListenerUp: func(a fabric.Addr) { up <- a },
		Failed: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	err = s.Start()
	if err == nil {
		d := program{server: s, log: log, out: stdout}
		err = d.run(signals, up, failed)
	}
	return errors.Join(err, stop(s, c.ShutdownTimeout, signals, log))
}

// program is the part of the program between start and stop.
type program struct {
	server *Server
	log    *slog.Logger
	out    io.Writer
}

func (d *program) run(signals <-chan os.Signal, up <-chan fabric.Addr, failed <-chan error) error {
	a := d.server.announcement()
	if _, err := io.WriteString(d.out, a.text(reachable)); err != nil {
		d.log.Warn("cannot print what is served", "error", err)
	}
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
		case addr := <-up:
			a := d.server.announcement()
			_, _ = io.WriteString(d.out,
				fmt.Sprintf("now on %s as well:\n%s", addr,
					connectCommands(addr, a.subsystems, reachable)))
			notify(d.log, "STATUS="+a.summary())
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

func newLogger(c config.Log, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.Level}
	if c.JSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

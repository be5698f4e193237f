package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

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

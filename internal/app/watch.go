package app

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/check"
)

// healthEvery is the interval at which drives are asked, and the space of files is measured.
const healthEvery = time.Minute

// watch calls fn at intervals, on its own goroutine, until stop is called. stop waits for fn.
func watch(every time.Duration, fn func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			fn()
			select {
			case <-t.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// warnEvery is the interval of warnings while the target runs.
const warnEvery = 24 * time.Hour

// keyWatch logs check.ExpiringKeys once a day and at expiry. Loading has warned already.
type keyWatch struct{ warned, checked time.Time }

func (w *keyWatch) check(c *config.Config, log *slog.Logger, now time.Time) {
	expired := slices.ContainsFunc(c.Hosts, func(h config.Host) bool {
		return h.Expired(now) && !h.Expired(w.checked)
	})
	w.checked = now
	if now.Sub(w.warned) < warnEvery && !expired {
		return
	}
	w.warned = now
	for _, p := range check.ExpiringKeys(c, now) {
		log.Warn(p.Error())
	}
}

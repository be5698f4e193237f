package app

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/check"
)

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

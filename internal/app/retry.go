package app

import (
	"context"
	"time"
)

// keepTrying calls try after pauses that double from first to most, until it succeeds, or until ctx
// is done, which is false. changed is called with each error that differs from the one before, last
// at the beginning.
func keepTrying(ctx context.Context, first, most time.Duration, last error, try func() error,
	changed func(error),
) bool {
	for pause := first; ; pause = min(2*pause, most) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		err := try()
		if err == nil {
			return true
		}
		if err.Error() != last.Error() {
			last = err
			changed(err)
		}
	}
}

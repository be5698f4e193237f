package isolation

import (
	"fmt"
	"os"
	"time"
)

// The promise: whatever one other host, any number of strangers or any one device does, no command
// of an ordinary host fails, no connection of it ends, and its p99 is within twice that without
// them. Afterwards all that they took is given back.
//
// The victim is measured alone and beside the culprit in alternating windows of one run, and the
// percentile is that of all windows of a kind. It makes about a thousand commands a second, one
// after another, and culprits hold what they attack instead of burning CPU time, or are limited in
// rate: target, victim and culprit are one process, whose CPUs are not what this is about (e2e's
// TestFairness and tests/bench are).
const (
	factor = 2
	// tolerance is how much longer than alone the p99 may be in any case, since a single window is
	// short and the machine may be busy; the best of attempts counts. With soak it is only for
	// culprits that cannot but take CPU time, but not in TestAllCulprits.
	tolerance = 20 * time.Millisecond
	attempts  = 3

	answerLimit = 10 * time.Second // for an answer to the victim
	settleLimit = 15 * time.Second // for everything to be given back
	stopLimit   = 20 * time.Second // for a stop of the target
)

// soak asks for long windows and the strict bound ("make soak").
var soak = os.Getenv("NVMF_ISOLATION_SOAK") != ""

// once asks for one window of each kind, where other runs measure more.
var once = os.Getenv("NVMF_ISOLATION_ONCE") != ""

// plan is how many windows of each kind there are, and how long each is.
func plan() (windows int, length time.Duration) {
	switch {
	case soak:
		return 5, 2 * time.Second
	case once:
		return 1, 400 * time.Millisecond
	}
	return 2, 400 * time.Millisecond
}

// outcome is what a victim has seen.
type outcome struct {
	alone, beside latencies // of reads and writes
	keepAlives    latencies // beside the culprit
	failed        []error   // commands
	ended         []error   // connections
}

func (o *outcome) add(of outcome) {
	o.alone.add(of.alone)
	o.beside.add(of.beside)
	o.keepAlives.add(of.keepAlives)
	o.failed = append(o.failed, of.failed...)
	o.ended = append(o.ended, of.ended...)
}

// unbroken says that no command failed and no connection ended.
func (o *outcome) unbroken() error {
	switch {
	case len(o.ended) > 0:
		return fmt.Errorf("%d connections of the victim ended, the first: %w", len(o.ended),
			o.ended[0])
	case len(o.failed) > 0:
		return fmt.Errorf("%d commands of the victim failed, the first: %w", len(o.failed),
			o.failed[0])
	case o.alone.count() == 0 || o.beside.count() == 0:
		return fmt.Errorf("the victim made %d commands alone and %d beside the culprit",
			o.alone.count(), o.beside.count())
	}
	return nil
}

// quick says that the p99 is within the bound, which for a busy culprit always has the tolerance.
func (o *outcome) quick(busy bool) error {
	alone, beside := o.alone.p99(), o.beside.p99()
	most := factor * alone
	if !soak || busy {
		most = max(most, alone+tolerance)
	}
	if beside > most {
		return fmt.Errorf("p99 of %v, %v alone", beside, alone)
	}
	return nil
}

func (o *outcome) String() string {
	const format = "p99 alone %v, beside %v, worst %v; worst keep-alive %v; %d failed, %d ended"
	return fmt.Sprintf(format, o.alone.p99(), o.beside.p99(), o.beside.worst(),
		o.keepAlives.worst(), len(o.failed), len(o.ended))
}

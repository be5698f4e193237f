package isolation

import (
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// The promise: whatever one other host, any number of strangers or any one device does, no command
// of an ordinary host fails, no connection of it ends, and its p99 is within twice that without
// them. Afterwards all that they took is given back.
//
// "make test" checks all of that but the p99: the victim makes a number of commands while the
// culprit holds what it attacks. For the p99 ("make soak") the victim is measured alone and beside
// the culprit in alternating windows of one run; the percentile is that of all windows of a kind.
// The victim makes about a thousand commands a second, one after another, and culprits hold what
// they attack instead of burning CPU time, or are limited in rate: target, victim and culprit are
// one process, whose CPUs are not what this is about (e2e's TestFairness and tests/bench are).
const (
	factor = 2
	// tolerance is how much longer than alone the p99 may be beside culprits that cannot but take
	// CPU time, but not in TestAllCulprits. The best of attempts counts.
	tolerance = 20 * time.Millisecond
	attempts  = 3
)

// window is how long a victim works: until it has made a number of commands and a time is over.
type window struct {
	commands int
	length   time.Duration
}

// few is a window for all kinds of commands.
var few = window{commands: 8}

// plan returns how many windows of each kind there are, and how long each is.
func plan() (windows int, each window) {
	if testutil.Soaking() {
		return 5, window{length: 2 * time.Second}
	}
	return 1, window{commands: 50}
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

// unbroken returns an error unless the victim made commands beside the culprit, none of them
// failed, and no connection ended.
func (o *outcome) unbroken() error {
	switch {
	case len(o.ended) > 0:
		return fmt.Errorf("%d connections of the victim ended, the first: %w", len(o.ended),
			o.ended[0])
	case len(o.failed) > 0:
		return fmt.Errorf("%d commands of the victim failed, the first: %w", len(o.failed),
			o.failed[0])
	case o.beside.count() == 0:
		return errors.New("the victim made no command beside the culprit")
	}
	return nil
}

// quick returns an error unless the p99 is within the bound, which for a busy culprit has the
// tolerance. Without soak there is no bound.
func (o *outcome) quick(busy bool) error {
	alone, beside := o.alone.p99(), o.beside.p99()
	most := factor * alone
	if busy {
		most = max(most, alone+tolerance)
	}
	if testutil.Soaking() && beside > most {
		return fmt.Errorf("p99 of %v, %v alone", beside, alone)
	}
	return nil
}

func (o *outcome) String() string {
	const format = "p99 alone %v, beside %v, worst %v; worst keep-alive %v; %d failed, %d ended"
	return fmt.Sprintf(format, o.alone.p99(), o.beside.p99(), o.beside.worst(),
		o.keepAlives.worst(), len(o.failed), len(o.ended))
}

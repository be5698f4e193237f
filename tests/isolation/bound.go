package isolation

import (
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// The promise: beside any other host, any number of strangers or any one device, no command of an
// ordinary host fails, none of its connections ends, and its p99 is at most twice its p99 without
// them. Afterwards all resources that they took are given back.
//
// "make test" checks everything but the p99: the victim makes a number of commands while the
// culprit holds the resource that it attacks. For the p99 ("make soak") the victim is measured
// alone and beside the culprit in alternating windows of one run; the percentile is over all
// windows of a kind. The victim makes about a thousand commands a second, one after another.
// Culprits hold their resource instead of burning CPU time, or are limited in rate, because target,
// victim and culprit share the CPUs of one process. CPU time is the subject of tests/bench.
const (
	factor = 2
	// tolerance is added to the bound of the p99 beside culprits that inevitably take CPU time, but
	// not in TestAllCulprits. The best of several attempts counts.
	tolerance = 20 * time.Millisecond
	attempts  = 3
)

// window is the work of a victim: at least a number of commands, and at least a time.
type window struct {
	commands int
	length   time.Duration
}

// few is a window for all kinds of commands.
var few = window{commands: 8}

// plan returns the number of windows of each kind, and the window. With soak, a row has about 4000
// commands of each kind, 40 of them above the p99.
func plan() (windows int, each window) {
	if testutil.Soaking() {
		return 2, window{length: 2 * time.Second}
	}
	return 1, window{commands: 32}
}

// outcome is the experience of a victim.
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

// quick returns an error unless the p99 is within the bound, to which a busy culprit adds the
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

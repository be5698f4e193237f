package isolation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// row is one way to starve others.
type row struct {
	name    string
	culprit string // Host, Stranger or Device
	attacks string // the resource
	links   []nvme.TransportType
	// run takes the attacked resource, calls hold, and gives everything back when hold returns. Its
	// error means that run could not do its work, or that the target misbehaved.
	run func(ctx context.Context, a *attack) error
	// bounds checks the resources that the culprit has made the target use; nil for the common
	// checks.
	bounds func(a *attack, now, base counts) error
	change func(*config.Config)
	// busy: the culprit also takes CPU time that the victim needs.
	busy bool
	// crossed: there is also a victim on RDMA beside the culprit on TCP, since the transports share
	// the attacked resource.
	crossed bool
	kind    kind // without it, the usual one
	// heap is the number of bytes that the culprit itself needs beyond the usual ones.
	heap int64
	// alone: the row needs its own configuration, or would disturb the others.
	alone bool
}

// The culprits of rows. A Host is allowed to connect, a Stranger is not.
const (
	Host     = "host"
	Stranger = "stranger"
	Device   = "device"
)

var (
	onTCP  = []nvme.TransportType{nvme.TransportTCP}
	onRDMA = []nvme.TransportType{nvme.TransportRDMA}
	onBoth = []nvme.TransportType{nvme.TransportTCP, nvme.TransportRDMA}
)

// rows is the matrix.
func rows() []row {
	return slices.Concat(deviceRows, hostRows, refusedRows, workRows, limitRows, strangerRows,
		floodRows)
}

// attack is the work of a culprit during one window.
type attack struct {
	*env
	ready chan struct{} // closed when the attack is in place
	once  sync.Once
	took  atomic.Int64 // pieces of the attacked resource
	key   *auth.Key    // of the host that visits, if it has one
}

// takes counts pieces of the attacked resource. A culprit that takes nothing tests nothing.
func (a *attack) takes(n int) { a.took.Add(int64(n)) }

// holdsMemory waits until the target has allocated data memory, which is for the culprit since the
// victim has little, and counts it. Meanwhile it calls work, if not nil.
func (a *attack) holdsMemory(ctx context.Context, work func() error) error {
	const least = 8 * mdts
	n := 0
	err := a.settles("the culprit holds data memory", func() error {
		if work != nil {
			if err := work(); err != nil {
				return err
			}
		}
		if n, _ = a.reactors(); n < least && ctx.Err() == nil {
			return fmt.Errorf("only %d bytes", n)
		}
		return nil
	})
	a.takes(n)
	return err
}

// inPlace records that the attack is in place.
func (a *attack) inPlace() { a.once.Do(func() { close(a.ready) }) }

// hold calls inPlace and waits for the end.
func (a *attack) hold(ctx context.Context) {
	a.inPlace()
	<-ctx.Done()
}

// repeat calls fn at intervals until ctx ends, as part of an attack in place.
func (a *attack) repeat(ctx context.Context, every time.Duration, fn func() error) error {
	for {
		if err := fn(); err != nil {
			return err
		}
		if !sleep(ctx, every) {
			return nil
		}
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Matrix runs the rows for these culprits on a transport: beside each of them the victim keeps its
// service. Rows that do not change the configuration share a target, and each of them checks that
// everything is given back.
func Matrix(t *testing.T, link nvme.TransportType, culprits ...string) {
	list, err := chosen(rows(), link, culprits)
	testutil.Must(t, err)
	e := newEnv(t, kind{link: link}, nil)
	v := newVictim(e, 0)
	var over *victim // on RDMA
	if link == nvme.TransportTCP {
		over = newVictimOver(e, nvme.TransportRDMA, 1, victimKATO)
	}
	for _, r := range list {
		t.Run(r.name, func(t *testing.T) {
			if r.change == nil && r.kind == (kind{}) {
				r.test(t, e, v)
				return
			}
			if err := openssl.Supported(); r.kind.tls && err != nil {
				t.Skip(err)
			}
			r.kind.link = link
			own := newEnv(t, r.kind, r.change)
			r.test(t, own, newVictim(own, 0))
		})
		if r.crossed && over != nil {
			t.Run(r.name+" beside rdma", func(t *testing.T) { r.test(t, e, over) })
		}
	}
}

// chosen returns the rows for these culprits on a transport. It is an error if a culprit has no
// rows, or a row has a culprit that Matrix does not know.
func chosen(all []row, link nvme.TransportType, culprits []string) (list []row, err error) {
	has := map[string]bool{}
	for _, r := range all {
		if !slices.Contains([]string{Host, Stranger, Device}, r.culprit) {
			return nil, fmt.Errorf("%s: no test runs rows of the culprit %q", r.name, r.culprit)
		}
		if slices.Contains(r.links, link) && slices.Contains(culprits, r.culprit) {
			list, has[r.culprit] = append(list, r), true
		}
	}
	for _, c := range culprits {
		if !has[c] {
			return nil, fmt.Errorf("there are no rows of the culprit %q", c)
		}
	}
	return list, nil
}

func (r *row) test(t *testing.T, e *env, v *victim) {
	before := e.t
	e.t = t
	defer func() { e.t = before }()
	var slow error
	for attempt := range attempts {
		o, err := r.measure(e, v)
		e.t.Logf("%s takes %s: %v", r.culprit, r.attacks, &o)
		err = errors.Join(err, o.unbroken())
		testutil.MustTrue(e.t, err == nil, "attempt %d: %v", attempt+1, err)
		if slow = o.quick(r.busy); slow == nil {
			return
		}
	}
	e.t.Errorf("in each of %d attempts, the last: %v", attempts, slow)
}

// measure runs the victim alone and beside the culprit in turns.
func (r *row) measure(e *env, v *victim) (all outcome, err error) {
	_, o := v.run(few)
	all.add(o)
	base := e.count()
	windows, each := plan()
	for range windows {
		if testutil.Soaking() {
			took, o := v.run(each)
			o.alone, o.keepAlives = took, nil
			all.add(o)
		}
		err = errors.Join(err, r.beside(e, v, each, base, &all))
		err = errors.Join(err, e.settles("what the culprit took is given back", func() error {
			return e.count().above(base)
		}))
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// beside runs the victim while the attack is being mounted, without counting its latencies, and
// then beside the attack.
func (r *row) beside(e *env, v *victim, w window, base counts, all *outcome) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := &attack{env: e, ready: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx, a) }()
	for mounted := false; !mounted; {
		_, o := v.run(few)
		all.add(o)
		select {
		case <-a.ready:
			mounted = true
		case err := <-ended:
			return fmt.Errorf("the culprit has ended: %w", err)
		default:
		}
	}
	took, o := v.run(w)
	o.beside = took
	all.add(o)
	now := e.count()
	cancel()
	err := <-ended
	if a.took.Load() == 0 {
		err = errors.Join(err, errors.New("the culprit has taken nothing"))
	}
	if more := now.goroutines - base.goroutines; more > mostGoroutines {
		err = errors.Join(err, fmt.Errorf("%d goroutines more than before", more))
	}
	if more := now.timers - base.timers; more > mostTimers+2*(now.connections-base.connections) {
		err = errors.Join(err, fmt.Errorf("%d timers more than before", more))
	}
	if more := int64(now.heap) - int64(base.heap); more > mostHeap+r.heap {
		err = errors.Join(err, fmt.Errorf("%d MiB of heap more than before", more>>20))
	}
	if r.bounds != nil {
		err = errors.Join(err, r.bounds(a, now, base))
	}
	return err
}

// The maximum that a culprit may make the process use, including its own part in the process. A
// connection, of which there is a limited number, may have two timers.
const (
	mostGoroutines = 256
	mostTimers     = 64
	mostHeap       = 128 << 20
)

package verbstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

var errOverrun = errors.New("completion queue overrun")

// cqEntry is a completion. Polling it frees the slots of its queue up to seq.
type cqEntry struct {
	wc   verbs.WC
	send *qp
	recv *recvQueue
	seq  uint64
}

type cq struct {
	object
	dev        *device
	ch         *compChannel
	ring       []cqEntry
	head, tail uint64 // the oldest entry, and the next free one
	armed      bool
	overrun    bool

	// avail is tail-head, for polling an empty queue without the lock. A failed queue has -1.
	avail atomic.Int64
	// polls is written without a lock: the race detector reports overlapping calls.
	polls uint64
}

func (d *device) CreateCQ(entries int, ch verbs.CompChannel, vector int) (verbs.CQ, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallCreateCQ); err != nil {
		return nil, err
	}
	if entries < 1 || entries > d.opt.Attr.MaxCQE || vector < 0 {
		return nil, fmt.Errorf("%s: %d entries, vector %d: %w", CallCreateCQ, entries, vector,
			unix.EINVAL)
	}
	if len(d.cqs) >= d.opt.Attr.MaxCQ {
		return nil, fmt.Errorf("%s: %w", CallCreateCQ, unix.ENOMEM)
	}
	c := &cq{dev: d, ring: make([]cqEntry, entries)}
	if ch != nil {
		c.ch = ch.(*compChannel)
		if c.ch.dev != d {
			return nil, fmt.Errorf("%s: the completion channel is of another device: %w",
				CallCreateCQ, unix.EINVAL)
		}
		c.ch.uses++
	}
	c.object = newObject(&d.host.live.CQs)
	d.cqs = append(d.cqs, c)
	return c, nil
}

func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.polls++
	if c.avail.Load() == 0 || len(wc) == 0 {
		return 0, nil
	}
	f := c.dev.f
	f.lock()
	defer f.unlock()
	c.use("Poll")
	if c.overrun {
		return 0, errOverrun
	}
	n := 0
	for ; n < len(wc) && c.head < c.tail; n++ {
		e := &c.ring[c.head%uint64(len(c.ring))]
		wc[n] = e.wc
		if e.send != nil {
			e.send.retire(e.seq)
		}
		if e.recv != nil {
			e.recv.head = max(e.recv.head, e.seq+1)
		}
		*e = cqEntry{}
		c.head++
	}
	c.avail.Store(int64(c.tail - c.head))
	return n, nil
}

func (c *cq) ReqNotify() error {
	c.polls++
	f := c.dev.f
	f.lock()
	defer f.unlock()
	c.use("ReqNotify")
	c.armed = true
	return nil
}

func (c *cq) Destroy() error {
	d := c.dev
	d.f.lock()
	defer d.f.unlock()
	if err := c.free(d.host, CallDestroyCQ); err != nil {
		return err
	}
	c.avail.Store(-1) // Poll takes the lock and panics
	d.cqs = slices.DeleteFunc(d.cqs, func(x *cq) bool { return x == c })
	if c.ch != nil {
		c.ch.uses--
	}
	return nil
}

// push adds a completion. A full queue overruns, which ends the queue pairs that use it.
func (c *cq) push(e cqEntry) {
	if c.overrun || c.freed {
		return
	}
	if c.tail-c.head == uint64(len(c.ring)) {
		c.fail()
		return
	}
	c.ring[c.tail%uint64(len(c.ring))] = e
	c.tail++
	c.avail.Store(int64(c.tail - c.head))
	if c.armed {
		c.armed = false
		if c.ch != nil {
			c.ch.signal()
		}
	}
}

// fail makes the queue unusable.
func (c *cq) fail() {
	if c.overrun {
		return
	}
	c.overrun = true
	c.avail.Store(-1)
	c.dev.raise(verbs.AsyncEvent{Type: verbs.AsyncCQErr, CQ: c})
	for _, q := range c.dev.qps {
		if q.scq == c || q.rcq == c {
			q.toError()
		}
	}
}

// compChannel is a completion channel: an eventfd that counts events.
type compChannel struct {
	object
	dev *device
	fd  int
}

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.call(CallCreateCompChannel); err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CallCreateCompChannel, err)
	}
	return &compChannel{object: newObject(&d.host.live.CompChannels), dev: d, fd: fd}, nil
}

func (c *compChannel) FD() int { return c.fd }

func (c *compChannel) signal() {
	one := [8]byte{}
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := unix.Write(c.fd, one[:]); err != nil {
		panic(fmt.Sprintf("verbstest: write to eventfd: %v", err))
	}
}

func (c *compChannel) Drain() (int, error) {
	var b [8]byte
	switch _, err := unix.Read(c.fd, b[:]); err {
	case nil:
		return int(binary.NativeEndian.Uint64(b[:])), nil
	case unix.EAGAIN:
		return 0, nil
	default:
		return 0, fmt.Errorf("drain completion channel: %w", err)
	}
}

func (c *compChannel) Close() error {
	d := c.dev
	d.f.lock()
	defer d.f.unlock()
	if err := c.free(d.host, CallDestroyCompChannel); err != nil {
		return err
	}
	return unix.Close(c.fd)
}

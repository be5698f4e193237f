// Package verbstest simulates RDMA in one process: machines with fake devices on one fake network.
// They move real bytes between real memory and follow the rules of hardware (queue pair states,
// keys, bounds and rights of memory, READ depth, queue capacities, receiver-not-ready, flushing,
// connection management with its events), and tests can inject faults.
//
//	PostSend -> send queue -> step (under the fabric's lock) -> peer's memory and receive queue ->
//		completion queues -> Poll
//
// Work is done at once by the goroutine that makes it possible, so tests are deterministic. With
// Options.Async another goroutine does it. Where hardware guarantees no order, the fake chooses the
// worst one: the data of an RDMA READ is fetched after later work requests were executed. Several
// goroutines may use everything, but data-path calls on one object must not overlap: the race
// detector reports it.
//
// With Options.Soft the machines have the soft stack of RoCEv2 instead, with the same counts and
// faults (soft.go, softqp.go).
package verbstest

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Options are the properties of a Fabric. The zero value is suitable for most tests.
type Options struct {
	// IWARP gives machines without a call of AddHost an iWARP device instead of a RoCE device.
	IWARP bool
	// Async makes a goroutine of the fabric do all work instead of the goroutine that posts. Close
	// ends it.
	Async bool
	// Soft gives the machines the soft stack (fabric/rdma/verbs/soft) on a network in memory
	// instead of the fake, with one device each. The faults are the same, with these exceptions: a
	// READ that is held has its data already, ExpireCM does nothing, and the timeouts are fixed.
	// IWARP and Async have no effect.
	Soft bool
	// CMTimeout is the time that the communication manager waits for an answer of the peer; 0 means
	// a minute.
	CMTimeout time.Duration
	// RetryTimeout is the time that a send queue tries to reach a peer that does not answer; 0
	// means 20 ms.
	RetryTimeout time.Duration
}

const (
	rnrTimer = time.Millisecond // the pause before one retry to a peer without receives
	timewait = time.Millisecond // from Disconnected to TimewaitExit on RoCE
)

// Fabric is a network of machines.
type Fabric struct {
	opt Options

	mu     sync.Mutex
	hosts  map[string]*host
	run    []*qp // queue pairs with something to do
	faults []*Injection
	drops  map[messageDrop]int // the number of messages to lose
	cuts   map[[2]*host]bool
	closed bool
	wake   chan struct{}
	done   chan struct{}
	soft   *softNet // with Options.Soft
}

// New makes a network without machines.
func New(opt Options) *Fabric {
	opt.CMTimeout = cmp.Or(opt.CMTimeout, time.Minute)
	opt.RetryTimeout = cmp.Or(opt.RetryTimeout, 20*time.Millisecond)
	f := &Fabric{
		opt: opt, hosts: map[string]*host{}, cuts: map[[2]*host]bool{},
		drops: map[messageDrop]int{},
	}
	if opt.Soft {
		f.soft = newSoftNet()
	} else if opt.Async {
		f.wake, f.done = make(chan struct{}, 1), make(chan struct{})
		go f.work()
	}
	return f
}

// Close stops timers and the goroutine of an asynchronous fabric.
func (f *Fabric) Close() {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.mu.Unlock()
	if f.soft != nil && !was {
		f.soft.close()
	}
	if f.wake != nil && !was {
		close(f.wake)
		<-f.done
	}
}

func (f *Fabric) work() {
	defer close(f.done)
	for range f.wake {
		f.mu.Lock()
		f.runAll()
		f.mu.Unlock()
	}
}

// lock and unlock bracket every call. unlock does all work that has become possible.
func (f *Fabric) lock() { f.mu.Lock() }

func (f *Fabric) unlock() {
	if len(f.run) > 0 {
		if f.wake == nil {
			f.runAll()
		} else if !f.closed {
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
	}
	f.mu.Unlock()
}

func (f *Fabric) runAll() {
	for i := 0; i < len(f.run); i++ {
		q := f.run[i]
		q.scheduled = false
		q.step()
	}
	clear(f.run)
	f.run = f.run[:0]
}

// schedule makes q step before the fabric is unlocked.
func (f *Fabric) schedule(q *qp) {
	if q != nil && !q.scheduled && !q.freed {
		q.scheduled = true
		f.run = append(f.run, q)
	}
}

// after calls fn with the fabric locked, d from now, unless the fabric is closed by then.
// The caller has locked it.
func (f *Fabric) after(d time.Duration, fn func()) *time.Timer {
	return time.AfterFunc(d, func() {
		f.lock()
		if !f.closed {
			fn()
		}
		f.unlock()
	})
}

// DeviceOptions describe a device.
type DeviceOptions struct {
	Attr  verbs.DeviceAttr // see RoCE and IWARP
	Addrs []netip.Addr     // the addresses of its network interface
	// MaxInline is the largest QPInit.MaxInline the device takes; 0 is 128, negative is none.
	MaxInline int
}

// RoCE describes a RoCE device with the limits of common hardware. It locks no memory, so the limit
// of this process does not matter.
func RoCE(name string, addrs ...netip.Addr) DeviceOptions {
	return DeviceOptions{Addrs: addrs, Attr: verbs.DeviceAttr{
		Name: name, VendorID: 0xfa4e,
		MaxQP: 4096, MaxQPWR: 16384, MaxSGE: 16, MaxSGERD: 16, MaxCQ: 4096, MaxCQE: 1 << 20,
		MaxMR: 65536, MaxMRSize: 1 << 40,
		MaxQPRdAtom: 16, MaxQPInitRdAtom: 16, MaxSRQ: 1024, MaxSRQWR: 32768, MaxSRQSGE: 2,
		NumCompVectors: 4, Unlocked: true,
	}}
}

// IWARP describes an iWARP device: one element per RDMA READ, and a sink that needs
// AccessRemoteWrite.
func IWARP(name string, addrs ...netip.Addr) DeviceOptions {
	d := RoCE(name, addrs...)
	d.Attr.IWARP, d.Attr.ReadNeedsRemoteWrite, d.Attr.HoldsUnsignaledWrites = true, true, true
	d.Attr.MaxSGE, d.Attr.MaxSGERD = 6, 1
	return d
}

type host struct {
	f        *Fabric
	name     string
	index    int
	devices  []*device
	ids      []*cmID // all existing ones
	nextPort uint16
	live     Counts

	failCalls map[Call]*callFault
	stack     *softStack // with Options.Soft
}

// AddHost makes a machine with these devices, or adds them to the machine of this name.
func (f *Fabric) AddHost(name string, devices ...DeviceOptions) {
	f.lock()
	defer f.unlock()
	h := f.hosts[name]
	if h == nil {
		h = f.newHost(name)
	}
	for _, d := range devices {
		h.addDevice(d)
	}
}

func (f *Fabric) newHost(name string) *host {
	h := &host{
		f: f, name: name, index: len(f.hosts) + 1, nextPort: 49152,
		failCalls: map[Call]*callFault{},
	}
	f.hosts[name] = h
	return h
}

// host returns the machine of this name. A machine without a call of AddHost gets one device with
// an IPv4 and an IPv6 address.
func (f *Fabric) host(name string) *host {
	if h := f.hosts[name]; h != nil {
		return h
	}
	h := f.newHost(name)
	v4 := netip.AddrFrom4([4]byte{192, 0, 2, byte(h.index)})
	v6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", h.index))
	if f.opt.IWARP {
		h.addDevice(IWARP("iwarp0", v4, v6))
	} else {
		h.addDevice(RoCE("roce0", v4, v6))
	}
	return h
}

func (h *host) addDevice(o DeviceOptions) {
	if o.MaxInline == 0 {
		o.MaxInline = 128
	}
	h.devices = append(h.devices, &device{f: h.f, host: h, opt: o})
}

// Provider is the RDMA stack of a machine.
func (f *Fabric) Provider(name string) verbs.Provider {
	f.lock()
	defer f.unlock()
	if h := f.host(name); f.soft != nil {
		return h.softStack()
	}
	return &provider{f.host(name)}
}

// Addr returns the first address of a machine. Any port may be used.
func (f *Fabric) Addr(name string) netip.Addr { return f.Addrs(name)[0] }

// Addrs returns the addresses of a machine, device by device.
func (f *Fabric) Addrs(name string) (list []netip.Addr) {
	f.lock()
	defer f.unlock()
	for _, d := range f.host(name).devices {
		list = append(list, d.opt.Addrs...)
	}
	return list
}

// find returns the device with the address.
func (f *Fabric) find(a netip.Addr) *device {
	for _, h := range f.hosts {
		if d := h.find(a); d != nil {
			return d
		}
	}
	return nil
}

func (h *host) find(a netip.Addr) *device {
	for _, d := range h.devices {
		for _, have := range d.opt.Addrs {
			if have.WithZone("") == a.WithZone("").Unmap() && !d.removed {
				return d
			}
		}
	}
	return nil
}

// object is the common part of verbs objects: they can be freed once, and not while others use
// them.
type object struct {
	freed bool
	uses  int
	count *int // of Counts
}

func newObject(count *int) object {
	*count++
	return object{count: count}
}

// free frees an object of a machine. The second call panics.
func (o *object) free(h *host, c Call) error {
	if o.freed {
		panic("verbstest: a second " + string(c))
	}
	if o.uses > 0 {
		return fmt.Errorf("%s: %d objects use it: %w", c, o.uses, unix.EBUSY)
	}
	if err := h.fault(c); err != nil {
		return err
	}
	o.freed = true
	*o.count--
	return nil
}

// use panics if the object has been freed.
func (o *object) use(call string) {
	if o.freed {
		panic("verbstest: " + call + " of a freed object")
	}
}

// Counts are the numbers of existing objects of a machine.
type Counts struct {
	CMs, IDs, PDs, MRs, CQs, QPs, SRQs, CompChannels, Watchers int
	MRBytes                                                    uint64
	RemoteMRs                                                  int // MRs with remote rights
}

// Live counts the objects of a machine that have not been freed. A machine at rest has Counts{}.
func (f *Fabric) Live(name string) Counts {
	f.lock()
	defer f.unlock()
	return f.host(name).live
}

type provider struct{ h *host }

func (p *provider) Devices() (list []verbs.DeviceAttr, err error) {
	p.h.f.lock()
	defer p.h.f.unlock()
	if err := p.h.fault(CallDevices); err != nil {
		return nil, err
	}
	for _, d := range p.h.devices {
		if !d.removed {
			list = append(list, d.opt.Attr)
		}
	}
	return list, nil
}

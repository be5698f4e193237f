package isolation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/tls"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var strangerRows = []row{
	{
		name: "unread discovery logs", culprit: Stranger, attacks: "data memory",
		links: onTCP, crossed: true,
		run: func(ctx context.Context, a *attack) error { return unreadLogs(ctx, a, 0) },
	},
	{
		name: "half Connect capsules", culprit: Stranger, attacks: "the reserve of data memory",
		links: onTCP,
		run: func(ctx context.Context, a *attack) error {
			return halfConnects(ctx, a, 1100)
		},
	},
	{
		name: "unread discovery logs and half capsules", culprit: Stranger,
		attacks: "data memory and its reserve", links: onTCP,
		run: func(ctx context.Context, a *attack) error { return unreadLogs(ctx, a, 1100) },
	},
	{
		name: "CC.SHN toggled", culprit: Stranger, attacks: "timers", links: onTCP, busy: true,
		run: toggleShutdown,
	},
	{
		name: "refused connects", culprit: Stranger, attacks: "the log", links: onBoth,
		busy: true,
		run:  refused, alone: true, change: giveUpSoon,
	},
	{
		name: "the victim's NQN first", culprit: Stranger, attacks: "identity", links: onBoth,
		run: firstCome, alone: true,
	},
	{
		name: "a queue of the victim's controller", culprit: Stranger, attacks: "identity",
		links: onBoth,
		run:   guessQueue, alone: true,
	},
	{
		name: "broken handshakes and records", culprit: Stranger,
		attacks: "the order of the stream", links: onTCP, busy: true, run: brokenTLS, alone: true,
		kind: kind{name: "tls", tls: true},
	},
	{
		name: "random bytes", culprit: Stranger, attacks: "connections and the log",
		links: onTCP, busy: true, run: randomBytes,
	},
}

// discovery makes the connection the admin queue of a discovery controller that is enabled.
func (r *raw) discovery() error {
	o := hostOptions(strangerNQN)
	o.SubNQN = nvme.DiscoveryNQN
	if _, err := r.Associate(0, 32, o, nvme.CNTLIDDynamic); err != nil {
		return err
	}
	_, err := r.Do(setCC(nvme.CCLinux))
	return err
}

// unreadLogs asks for the discovery log on several controllers and does not read it, beside half
// capsules on as many connections.
func unreadLogs(ctx context.Context, a *attack, halves int) error {
	const controllers, logs = 8, 30
	for i := range controllers {
		r, err := a.dial(ctx, a.from(1+i))
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if err := r.discovery(); err != nil {
			continue // its own limit
		}
		size, err := r.largestLog()
		if err != nil {
			return err
		}
		var b []byte
		for range logs {
			b = append(b, getLog(size)...)
		}
		if _, err := r.Write(b); err != nil {
			return err
		}
		a.takes(1)
	}
	if halves > 0 {
		return halfConnects(ctx, a, halves)
	}
	sleep(ctx, 100*time.Millisecond)
	a.hold(ctx)
	return nil
}

func getLog(size int) []byte {
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminGetLogPage)
	op.SQE.GetLog().Set(nvme.LogDiscovery, uint64(size), 0, 0, true)
	return bare(&op, size)
}

// largestLog returns the size limit of the data that a controller returns at once.
func (r *raw) largestLog() (int, error) {
	for size := mdts; size >= 4096; size /= 2 {
		if _, err := r.Write(getLog(size)); err != nil {
			return 0, err
		}
		got := 0
		for got < size {
			b, err := r.take()
			if err != nil {
				return 0, err
			}
			if (*pdu.Header)(b).Type() != pdu.TypeC2HData {
				break
			}
			got += len(b) - pdu.DataSize
		}
		if got == size {
			_, err := r.take() // CapsuleResp
			return size, err
		}
	}
	return 0, errors.New("no size of the discovery log is accepted")
}

// halfConnects stops in the middle of the data of Connect on many connections.
func halfConnects(ctx context.Context, a *attack, n int) error {
	o := hostOptions(strangerNQN)
	half := capsule(host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
	half = half[:len(half)-100]
	for i := range n {
		r, err := a.dial(ctx, a.from(1+i))
		if err != nil {
			break // a limit
		}
		defer func() { _ = r.Close() }()
		if r.greet() == nil {
			if _, err := r.Write(half); err == nil {
				a.takes(1)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	a.hold(ctx)
	return nil
}

// toggleShutdown repeatedly requests a shutdown and cancels it, on a discovery controller.
func toggleShutdown(ctx context.Context, a *attack) error {
	r, err := a.dial(ctx, a.from(1))
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if err := r.discovery(); err != nil {
		return err
	}
	a.inPlace()
	return a.repeat(ctx, time.Millisecond, func() error {
		for range 8 {
			for _, cc := range []nvme.CC{nvme.CCLinux | nvme.CCShutdownNormal, nvme.CCLinux} {
				if _, err := r.Do(setCC(cc)); err != nil {
					return nil // the controller may refuse it, or end
				}
				a.takes(1)
			}
		}
		return nil
	})
}

// floodRows have strangers of each kind that open as many connections as they get, from each place.
var floodRows = func() (list []row) {
	idle := func(*raw) error { return nil }
	nothing := func(context.Context, *host.Queue) error { return nil }
	for _, of := range []struct {
		name, attacks string
		links         []nvme.TransportType
		run           func(ctx context.Context, a *attack, from place) error
	}{
		{"idle connections", "connections", onTCP, connections(idle)},
		{"half an ICReq", "connections", onTCP, connections((*raw).halfGreet)},
		{"connections after ICReq", "connections", onTCP, connections((*raw).greet)},
		{halfHello, "connections", onTCP, connections((*raw).halfHello)},
		{hello, "connections", onTCP, connections((*raw).hello)},
		{
			"idle discovery controllers", "connections and controllers", onTCP,
			connections((*raw).discovery),
		},
		{"queue pairs without Connect", "queue pairs", onRDMA, queues(nothing)},
		{"refused queues that stay", "connections", onBoth, queues(connectTo(subNQN))},
		{
			"discovery controllers over queue pairs", "queue pairs and controllers", onRDMA,
			queues(connectTo(nvme.DiscoveryNQN)),
		},
		{"half authentications", "connections", onBoth, halfAuthentications},
	} {
		for _, from := range []place{
			{"addresses of their own", func(a *attack, i int) (netip.Addr, string) {
				return a.from(1 + i%8), "culprit"
			}},
			{manyAddresses, func(_ *attack, i int) (netip.Addr, string) {
				return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), ""
			}},
			{knownHost, func(a *attack, _ int) (netip.Addr, string) {
				return a.knownAddress(), "host"
			}},
		} {
			r := row{
				name: of.name + " from " + from.name, culprit: Stranger,
				attacks: of.attacks, links: of.links, busy: true, alone: true,
				heap: int64(from.size(0)) * 192 << 10,
				run:  func(ctx context.Context, a *attack) error { return of.run(ctx, a, from) },
			}
			r.kind.tls = of.name == halfHello || of.name == hello
			r.change = func(c *config.Config) {
				if !from.fills() {
					fewConnections(c)
				}
			}
			if from.name == manyAddresses {
				r.links = slices.DeleteFunc(slices.Clone(r.links), func(l nvme.TransportType) bool {
					return l == nvme.TransportRDMA
				})
			}
			list = append(list, r)
		}
	}
	return list
}()

// fewConnections lowers the limits so that a hundred connections are a flood.
func fewConnections(c *config.Config) {
	c.TCP.Connections, c.TCP.PerHost = 128, 64
	c.RDMA.Connections, c.RDMA.PerHost = 64, 48
}

// place has the addresses and the machines of strangers.
type place struct {
	name string
	of   func(a *attack, i int) (netip.Addr, string) // of stranger i
}

const (
	manyAddresses = "many addresses"
	knownHost     = "the address of a known host"
	halfHello     = "half a ClientHello"
	hello         = "a ClientHello"
)

// fills reports whether strangers reach the usual limits of the target, with soak.
func (p place) fills() bool { return p.name == manyAddresses && testutil.Soaking() }

// size returns the number of connections of a flood.
func (p place) size(usual int) int {
	if p.fills() {
		return 8000
	}
	return usual
}

// connections opens TCP connections, prepares each with fn, and keeps the newest of them up to the
// limit. Meanwhile a known host must be able to connect.
func connections(fn func(*raw) error) func(context.Context, *attack, place) error {
	return func(ctx context.Context, a *attack, from place) error {
		most := from.size(512)
		var conns []*raw
		defer func() {
			for _, r := range conns {
				_ = r.Close()
			}
		}()
		return a.besideVisits(ctx, from, func() {
			for i := range most / 4 {
				if len(conns) == most {
					_ = conns[0].Close()
					conns = conns[1:]
				}
				addr, _ := from.of(a, len(conns)+i)
				r, err := a.dial(ctx, addr)
				if err != nil {
					return
				}
				if err := fn(r); err != nil {
					_ = r.Close()
					return // full
				}
				conns = append(conns, r)
				a.takes(1)
			}
		})
	}
}

// queues does the same with queues of either transport.
func queues(fn func(context.Context, *host.Queue) error,
) func(context.Context, *attack, place) error {
	return func(ctx context.Context, a *attack, from place) error {
		var queues []*host.Queue
		defer func() {
			for _, q := range queues {
				_ = q.Close()
			}
		}()
		most := from.size(72)
		room := most
		return a.besideVisits(ctx, from, func() {
			queues = slices.DeleteFunc(queues, func(q *host.Queue) bool {
				_, err := q.Poll(nil)
				if err != nil { // the target has ended the connection
					_ = q.Close()
				}
				return err != nil
			})
			for n := 0; n < room && len(queues) < most; n++ {
				q, err := host.DialQueue(ctx, a.transport(from.of(a, len(queues))), 0, 32, 0)
				if err != nil {
					return
				}
				if err := fn(ctx, q); err != nil { // full
					_ = q.Close()
					return
				}
				queues = append(queues, q)
				a.takes(1)
			}
			room = min(most, 512) // the host has sent no Connect command yet
		})
	}
}

// halfAuthentications begin to authenticate as the known host, with the most expensive of the
// default groups, and go no further.
func halfAuthentications(ctx context.Context, a *attack, from place) (err error) {
	if a.key, err = auth.NewKey(32, auth.SHA256); err != nil {
		return err
	}
	testutil.Secret(a.t, a.key.Reveal())
	a.server.Target().SetHostPolicy(victimNQN2, &auth.Policy{Keys: []*auth.Key{a.key}})
	o := hostOptions(victimNQN2)
	return queues(func(ctx context.Context, q *host.Queue) error {
		cqe, err := q.Do(ctx, host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
		if err != nil || !cqe.Status().OK() {
			return errors.Join(err, cqe.Status())
		}
		peer := auth.Host{HostNQN: victimNQN2, Groups: []auth.Group{auth.FFDHE3072}}
		op := host.Op{Data: peer.Negotiate(1)}
		op.SQE.Auth().Set(nvme.FabricsAuthSend, uint32(len(op.Data)))
		if _, err = q.Submit(&op); err == nil {
			_, err = q.Poll(make([]host.Completion, 1))
		}
		return err
	})(ctx, a, from)
}

// besideVisits repeatedly opens more connections beside a known host, which must be able to connect
// with eight queues at once, and to use them when more strangers have come. A host from an unknown
// address must be able to connect, too.
func (a *attack) besideVisits(ctx context.Context, from place, more func()) error {
	if err := a.visit(); err != nil { // makes the host known
		return err
	}
	more()
	// Strangers that share the address of the host take the place of its connections, too.
	early := more
	if from.name == knownHost {
		early = func() {}
	}
	var errs error
	err := a.repeat(ctx, 50*time.Millisecond, func() error {
		errs = errors.Join(errs, a.visitFrom(a.knownAddress(), "host", 8, early, more))
		if a.link == nvme.TransportTCP {
			errs = errors.Join(errs, a.visitFrom(a.from(99), "", 0))
		}
		a.inPlace()
		return nil
	})
	return errors.Join(err, errs)
}

// knownAddress is the address of the host that visits, over TCP.
func (a *attack) knownAddress() (addr netip.Addr) {
	if a.link == nvme.TransportTCP {
		addr = address(1)
	}
	return addr
}

// visit connects as a known host and disconnects.
func (a *attack) visit() error { return a.visitFrom(a.knownAddress(), "host", 1) }

// visitFrom connects an allowed host with I/O queues, uses each of them, and disconnects. The first
// of more is called when the connections of all I/O queues are open and none has sent a Connect
// command, the second before the queues are used.
func (a *attack) visitFrom(from netip.Addr, machine string, queues int, more ...func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	o := hostOptions(victimNQN2)
	o.Key = a.key
	began := time.Now()
	t := a.transport(from, machine)
	c, err := host.Connect(ctx, t, o)
	if err != nil {
		return fmt.Errorf("an allowed host cannot connect from %v: %w", from, err)
	}
	p := party{Controller: c}
	defer p.close()
	if tcp, ok := t.(host.TCP); ok && tcp.PSK != nil { // DialQueue has no names
		tcp.PSK = func(_, _ string) (*auth.TLSPSK, error) { return hostPSK(o.HostNQN, o.SubNQN) }
		t = tcp
	}
	if d := time.Since(began); testutil.Soaking() && d > 2*time.Second {
		return fmt.Errorf("an allowed host has connected from %v after %v", from, d)
	}
	steps := []func(qid uint16) error{
		func(qid uint16) error {
			q, err := host.DialQueue(ctx, t, qid, 32, c.CNTLID())
			if err == nil {
				p.queues = append(p.queues, q)
			}
			return err
		},
		func(qid uint16) error {
			q := p.queues[qid-1]
			cqe, err := q.Do(ctx, host.ConnectCommand(qid, 32, &o, c.CNTLID()))
			switch {
			case err != nil:
			case !cqe.Status().OK():
				err = cqe.Status()
			case nvme.ConnectResult(cqe.DW0())&nvme.ConnectATR != 0:
				err = q.Authenticate(ctx, &o)
			}
			return err
		},
		func(qid uint16) error { return hosttest.Flush(ctx, p.queues[qid-1], nsPool) },
	}
	for i, step := range steps {
		for qid := range uint16(queues) {
			if err := step(qid + 1); err != nil {
				return fmt.Errorf("queue %d of an allowed host from %v: %w", qid+1, from, err)
			}
		}
		if i < len(more) {
			more[i]()
		}
	}
	return nil
}

// connectTo sends the Connect command of a stranger.
func connectTo(nqn string) func(context.Context, *host.Queue) error {
	o := hostOptions(strangerNQN)
	o.SubNQN = nqn
	return func(ctx context.Context, q *host.Queue) error {
		_, err := q.Do(ctx, host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic))
		return err
	}
}

// tlsBreak is a way to break the rules of TLS.
type tlsBreak struct {
	name  string
	bytes func(*raw) ([]byte, error)
	log   string // why the connection has ended
	last  []byte // the last bytes for the peer; nil: any
}

var tlsBreaks = func() []tlsBreak {
	after := func(b ...byte) func(*raw) ([]byte, error) {
		return func(r *raw) ([]byte, error) { return b, r.shake() }
	}
	send := func(b ...byte) func(*raw) ([]byte, error) {
		return func(*raw) ([]byte, error) { return b, nil }
	}
	otherKey := func(*raw) (hello []byte, err error) {
		err = withClient(func(c *tls.Client) error {
			b, _, err := c.Step(nil)
			hello = bytes.Clone(b)
			hello[20]++
			return err
		})
		return hello, err
	}
	const failed = "TLS handshake failed"
	endless := append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xFF, 0xFF}, make([]byte, 20<<10)...)
	forged := append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...)
	return []tlsBreak{
		{
			"a ClientHello that is changed", otherKey, "the client has another key",
			[]byte{21, 3, 3, 0, 2, 2, 51},
		},
		{"no ClientHello", send(22, 3, 1, 0, 5, 2, 0, 0, 1, 0), failed, nil},
		{"records without end", send(endless...), failed, nil},
		{"a record that is forged", after(forged...), "TLS: a record was changed", nil},
		{"plain data", after(make([]byte, 128)...), "TLS: a record of type 0", nil},
		{"a record that is too long", after(23, 3, 3, 0xFF, 0xFF), "TLS: a record of 65535", nil},
	}
}()

// brokenTLS breaks the rules of TLS on one connection after another.
func brokenTLS(ctx context.Context, a *attack) error {
	for first := true; first || ctx.Err() == nil; first = false {
		for _, one := range tlsBreaks {
			r, err := a.dial(context.Background(), a.from(1))
			if err != nil {
				return err
			}
			_ = r.SetDeadline(time.Now().Add(testutil.Patience))
			b, err := one.bytes(r)
			if err == nil {
				_, _ = r.Write(b)
				b, err = io.ReadAll(r)
			}
			_ = r.Close()
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return fmt.Errorf("%s: the connection stays open", one.name)
			case one.last != nil && !bytes.Equal(b, one.last):
				return fmt.Errorf("%s: the peer got % x instead of % x", one.name, b, one.last)
			}
			if err := a.settles("the log says "+one.log, func() error {
				if !strings.Contains(a.log.String(), one.log) {
					return errors.New("it does not")
				}
				return nil
			}); err != nil {
				return err
			}
			a.takes(1)
		}
		a.inPlace()
	}
	return nil
}

// randomBytes speaks another protocol.
func randomBytes(ctx context.Context, a *attack) error {
	rng := rand.NewChaCha8([32]byte{12})
	quiet := a.quiet()
	a.inPlace()
	var open []*raw
	err := a.repeat(ctx, 10*time.Millisecond, func() error {
		r, err := a.dial(ctx, a.from(len(open)))
		if err != nil {
			return nil // a limit
		}
		open = append(open, r)
		b := make([]byte, 200)
		_, _ = rng.Read(b)
		if _, err := r.Write(b); err == nil {
			a.takes(1)
		}
		return nil
	})
	for _, r := range open {
		_ = r.Close()
	}
	return errors.Join(err, quiet())
}

package isolation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var strangerRows = []row{
	{
		name: "unread discovery logs", culprit: "stranger", attacks: "data memory",
		links: onTCP, crossed: true,
		run: func(ctx context.Context, a *attack) error { return unreadLogs(ctx, a, 0) },
	},
	{
		name: "half Connect capsules", culprit: "stranger", attacks: "the reserve of data memory",
		links: onTCP,
		run: func(ctx context.Context, a *attack) error {
			return halfConnects(ctx, a, 1100)
		},
	},
	{
		name: "unread discovery logs and half capsules", culprit: "stranger",
		attacks: "data memory and its reserve", links: onTCP,
		run: func(ctx context.Context, a *attack) error { return unreadLogs(ctx, a, 1100) },
	},
	{
		name: "CC.SHN toggled", culprit: "stranger", attacks: "timers", links: onTCP, busy: true,
		run: toggleShutdown,
	},
	{
		name: "refused connects", culprit: "stranger", attacks: "the log", links: onBoth,
		busy: true,
		run:  refused, alone: true, change: giveUpSoon,
	},
	{
		name: "the victim's NQN first", culprit: "stranger", attacks: "identity", links: onBoth,
		run: firstCome, alone: true,
	},
	{
		name: "a queue of the victim's controller", culprit: "stranger", attacks: "identity",
		links: onBoth,
		run:   guessQueue, alone: true,
	},
	{
		name: "random bytes", culprit: "stranger", attacks: "connections and the log",
		links: onTCP, busy: true, run: randomBytes,
	},
}

// discovery makes the connection the admin queue of a discovery controller that is enabled.
func (r *raw) discovery() error {
	o := hostOptions(strangerNQN)
	o.SubNQN = nvme.DiscoveryNQN
	if _, err := r.associate(0, 32, o, nvme.CNTLIDDynamic); err != nil {
		return err
	}
	_, err := r.do(setCC(nvme.CCLinux))
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
		defer r.Close()
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
		defer r.Close()
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
	defer r.Close()
	if err := r.discovery(); err != nil {
		return err
	}
	a.inPlace()
	return a.repeat(ctx, time.Millisecond, func() error {
		for range 8 {
			for _, cc := range []nvme.CC{nvme.CCLinux | nvme.CCShutdownNormal, nvme.CCLinux} {
				if _, err := r.do(setCC(cc)); err != nil {
					return nil // the controller may refuse it, or end
				}
				a.takes(1)
			}
		}
		return nil
	})
}

// floodRows have strangers of each kind that open as many connections as they get, from addresses
// of their own and from the address of a known host.
var floodRows = func() (list []row) {
	idle := func(*raw) error { return nil }
	for _, kind := range []struct {
		name, attacks string
		links         []nvme.TransportType
		run           func(ctx context.Context, a *attack, from place) error
	}{
		{"idle connections", "connections", onTCP, connections(idle)},
		{"half an ICReq", "connections", onTCP, connections((*raw).halfGreet)},
		{"connections after ICReq", "connections", onTCP, connections((*raw).greet)},
		{
			"idle discovery controllers", "connections and controllers", onTCP,
			connections((*raw).discovery),
		},
		{"queue pairs without Connect", "queue pairs", onRDMA, queues(nil)},
		{"refused queues that stay", "connections", onBoth, queues(connectTo(subNQN))},
		{
			"discovery controllers over queue pairs", "queue pairs and controllers", onRDMA,
			queues(connectTo(nvme.DiscoveryNQN)),
		},
	} {
		for name, from := range map[string]place{
			"": elsewhere, " from the address of a known host": besideKnown,
		} {
			list = append(list, row{
				name: kind.name + name, culprit: "stranger", attacks: kind.attacks,
				links: kind.links, busy: true, alone: true, change: fewConnections,
				run: func(ctx context.Context, a *attack) error { return kind.run(ctx, a, from) },
			})
		}
	}
	return list
}()

// fewConnections lowers the limits so that a few hundred connections are a flood.
func fewConnections(c *config.Config) {
	c.TCP.MaxConnections, c.TCP.MaxConnectionsPerHost = 256, 128
	c.RDMA.MaxQueues, c.RDMA.MaxQueuesPerHost = 64, 48
}

// place returns the address and the machine of stranger i.
type place func(a *attack, i int) (netip.Addr, string)

func elsewhere(a *attack, i int) (netip.Addr, string) { return a.from(1 + i%8), "culprit" }

func besideKnown(a *attack, _ int) (netip.Addr, string) { return a.knownAddress(), "host" }

// connections opens TCP connections up to the limit, prepares each with fn, and replaces each one
// that ends. Meanwhile a known host must be able to connect.
func connections(fn func(*raw) error) func(context.Context, *attack, place) error {
	return func(ctx context.Context, a *attack, from place) error {
		const each, most = 512, 1024
		var conns []*raw
		defer func() {
			for _, r := range conns {
				_ = r.Close()
			}
		}()
		return a.besideVisits(ctx, func() {
			for i := 0; i < each && len(conns) < most; i++ {
				addr, _ := from(a, i)
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

// queues establishes queues up to the limit, and replaces each one that ends. It sends connect on
// them, if it is not nil.
func queues(connect *host.Op) func(context.Context, *attack, place) error {
	return func(ctx context.Context, a *attack, from place) error {
		var queues []*host.Queue
		defer func() {
			for _, q := range queues {
				_ = q.Close()
			}
		}()
		return a.besideVisits(ctx, func() {
			queues = slices.DeleteFunc(queues, func(q *host.Queue) bool {
				_, err := q.Poll(nil)
				if err != nil { // the target has ended the connection
					_ = q.Close()
				}
				return err != nil
			})
			for len(queues) < 128 {
				q, err := host.DialQueue(ctx, a.transport(from(a, len(queues))), 0, 32, 0)
				if err != nil {
					return
				}
				if connect != nil {
					op := *connect
					if _, err := q.Do(ctx, &op); err != nil { // full
						_ = q.Close()
						return
					}
				}
				queues = append(queues, q)
				a.takes(1)
			}
		})
	}
}

// besideVisits repeatedly opens more connections beside a known host, which must be able to
// connect, and to use its queues when more strangers have come.
func (a *attack) besideVisits(ctx context.Context, more func()) error {
	if err := a.visit(); err != nil { // makes the host known
		return err
	}
	more()
	var errs error
	err := a.repeat(ctx, 50*time.Millisecond, func() error {
		errs = errors.Join(errs, a.visitBeside(more))
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

// visit connects as a known host, reads and disconnects.
func (a *attack) visit() error { return a.visitBeside(func() {}) }

// visitBeside connects a known host with eight queues, calls more, reads on each queue, and
// disconnects.
func (a *attack) visitBeside(more func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	c, err := host.Connect(ctx, a.transport(a.knownAddress(), "host"), hostOptions(victimNQN2))
	if err != nil {
		return fmt.Errorf("a known host cannot connect: %w", err)
	}
	p := party{Controller: c}
	defer p.close()
	for qid := uint16(1); qid <= 8; qid++ {
		q, err := c.OpenQueue(ctx, qid, 32)
		if err != nil {
			return fmt.Errorf("a known host cannot connect queue %d: %w", qid, err)
		}
		p.queues = append(p.queues, q)
	}
	more()
	buf, err := c.Map(blockSize)
	if err != nil {
		return err
	}
	for i, q := range p.queues {
		if err := hosttest.Read(ctx, q, nsPool, 0, 1, buf); err != nil {
			return fmt.Errorf("queue %d of a known host: %w", i+1, err)
		}
	}
	return nil
}

// connectTo returns the Connect command of a stranger.
func connectTo(nqn string) *host.Op {
	o := hostOptions(strangerNQN)
	o.SubNQN = nqn
	return host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
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

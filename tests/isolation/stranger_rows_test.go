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
		name: "idle connections", culprit: "stranger", attacks: "connections", links: onTCP,
		busy:  true,
		alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return flood(ctx, a, func(r *raw) error { return nil })
		},
	},
	{
		name: "connections after ICReq", culprit: "stranger", attacks: "connections", links: onTCP,
		busy:  true,
		alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return flood(ctx, a, (*raw).greet)
		},
	},
	{
		name: "idle discovery controllers", culprit: "stranger",
		attacks: "connections and controllers", links: onTCP,
		busy:  true,
		alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return flood(ctx, a, (*raw).discovery)
		},
	},
	{
		name: "queue pairs without Connect", culprit: "stranger", attacks: "queue pairs",
		links: onRDMA, busy: true, alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return floodQueues(ctx, a, a.elsewhere, nil)
		},
	},
	{
		name: "refused queues that stay", culprit: "stranger", attacks: "connections",
		links: onBoth, busy: true, alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return floodQueues(ctx, a, a.elsewhere, connectTo(subNQN))
		},
	},
	{
		name: "discovery controllers over queue pairs", culprit: "stranger",
		attacks: "queue pairs and controllers",
		links:   onRDMA, busy: true, alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return floodQueues(ctx, a, a.elsewhere, connectTo(nvme.DiscoveryNQN))
		},
	},
	{
		name: "queues from the address of a known host", culprit: "stranger",
		attacks: "connections", links: onBoth, busy: true, alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error {
			return floodQueues(ctx, a, func(int) host.Transport {
				return a.transport(a.knownAddress(), "host")
			}, nil, connectTo(subNQN), connectTo(nvme.DiscoveryNQN))
		},
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

// fewConnections lowers the limits so that a few hundred connections are a flood.
func fewConnections(c *config.Config) {
	c.TCP.MaxConnections, c.TCP.MaxConnectionsPerHost = 256, 128
	c.RDMA.MaxQueues, c.RDMA.MaxQueuesPerHost = 64, 48
}

// flood opens connections from several addresses, up to the limit, and replaces each one that ends.
// Meanwhile a known host must be able to connect.
func flood(ctx context.Context, a *attack, fn func(*raw) error) error {
	const addresses, each = 8, 64
	var conns []*raw
	defer func() {
		for _, r := range conns {
			_ = r.Close()
		}
	}()
	more := func() {
		for i := 0; i < addresses*each && len(conns) < 2*addresses*each; i++ {
			r, err := a.dial(ctx, a.from(1+i%addresses))
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
	}
	return a.besideVisits(ctx, more)
}

// besideVisits repeatedly opens more connections beside a known host, which must be able to
// connect.
func (a *attack) besideVisits(ctx context.Context, more func()) error {
	if err := a.visit(); err != nil { // makes the host known
		return err
	}
	more()
	var errs error
	err := a.repeat(ctx, 50*time.Millisecond, func() error {
		errs = errors.Join(errs, a.visit())
		a.inPlace()
		more()
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
func (a *attack) visit() error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	c, err := host.Connect(ctx, a.transport(a.knownAddress(), "host"), hostOptions(victimNQN2))
	if err != nil {
		return fmt.Errorf("a known host cannot connect: %w", err)
	}
	defer c.Close()
	q, err := c.OpenQueue(ctx, 1, 32)
	if err != nil {
		return fmt.Errorf("a known host cannot connect a queue: %w", err)
	}
	defer q.Close()
	buf, err := c.Map(blockSize)
	if err != nil {
		return err
	}
	return hosttest.Read(ctx, q, nsPool, 0, 1, buf)
}

// connectTo returns the Connect command of a stranger.
func connectTo(nqn string) *host.Op {
	o := hostOptions(strangerNQN)
	o.SubNQN = nqn
	return host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
}

// elsewhere connects stranger i, which has another address than the hosts.
func (a *attack) elsewhere(i int) host.Transport { return a.transport(a.from(1+i%8), "culprit") }

// floodQueues establishes connections up to the limit, and replaces each one that ends. It sends
// the Connect commands on them in turn; nil stands for none.
func floodQueues(ctx context.Context, a *attack, from func(i int) host.Transport,
	connects ...*host.Op,
) error {
	var queues []*host.Queue
	defer func() {
		for _, q := range queues {
			_ = q.Close()
		}
	}()
	more := func() {
		queues = slices.DeleteFunc(queues, func(q *host.Queue) bool {
			_, err := q.Poll(nil)
			if err != nil { // the target has ended the connection
				_ = q.Close()
			}
			return err != nil
		})
		for len(queues) < 128 {
			i := len(queues)
			q, err := host.DialQueue(ctx, from(i), 0, 32, 0)
			if err != nil {
				return
			}
			if connect := connects[i%len(connects)]; connect != nil {
				op := *connect
				if _, err := q.Do(ctx, &op); err != nil { // full
					_ = q.Close()
					return
				}
			}
			queues = append(queues, q)
			a.takes(1)
		}
	}
	return a.besideVisits(ctx, more)
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

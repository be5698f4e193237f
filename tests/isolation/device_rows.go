package isolation

import (
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var deviceRows = []row{
	{
		name: "hung namespace, reads", culprit: Device, attacks: "data memory", links: onBoth,
		run: func(ctx context.Context, a *attack) error { return hungDevice(ctx, a, false) },
	},
	{
		name: "hung namespace, writes", culprit: Device, attacks: "data memory", links: onBoth,
		run: func(ctx context.Context, a *attack) error { return hungDevice(ctx, a, true) },
	},
	{
		name: "hung namespace, commands given up", culprit: Device,
		attacks: "data memory of orphans", links: onBoth,
		run: givenUp, change: giveUpSoon,
	},
	{
		name: "hung namespace, host reconnects", culprit: Device,
		attacks: "data memory of ended queues", links: onBoth, busy: true,
		run: hungReconnects,
	},
	{
		name: "device is full", culprit: Device, attacks: "data memory", links: onBoth,
		run: fullDevice,
	},
	{
		name: "space query hangs", culprit: Device, attacks: "goroutines", links: onBoth,
		run: func(ctx context.Context, a *attack) error {
			defer a.thin.begin()()
			return queries(ctx, a, func() *host.Op {
				op := &host.Op{Data: make([]byte, nvme.IdentifyDataSize)}
				op.SQE.SetOpcode(nvme.AdminIdentify)
				op.SQE.SetNSID(nsThin)
				op.SQE.Identify().Set(nvme.CNSNamespace, 0, 0)
				return op
			})
		},
	},
	{
		name: "SMART query hangs", culprit: Device, attacks: "goroutines", links: onBoth,
		run: func(ctx context.Context, a *attack) error {
			defer a.drive.begin()()
			return queries(ctx, a, func() *host.Op {
				op := &host.Op{Data: make([]byte, 512)}
				op.SQE.SetOpcode(nvme.AdminGetLogPage)
				op.SQE.SetNSID(0xFFFFFFFF)
				op.SQE.GetLog().Set(nvme.LogSMART, 512, 0, 0, true)
				return op
			})
		},
	},
}

// giveUpSoon shortens the time that a command waits for nsHung and for data memory. The victim
// waits for neither.
func giveUpSoon(c *config.Config) {
	c.Subsystems[0].Namespaces[nsHung-1].Timeout = 100 * time.Millisecond
	c.TCP.MemoryTimeout, c.RDMA.MemoryTimeout = 100*time.Millisecond, 100*time.Millisecond
}

// bigCommands is more than the data memory holds.
const bigCommands = 100

// hungDevice has 100 commands of 1 MiB for a namespace that hangs.
func hungDevice(ctx context.Context, a *attack, write bool) error {
	defer a.hangs.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.submit(p.queues[0], bigCommands, write, nsHung, mdts); err != nil {
		return err
	}
	// The data of writes is in transit as long as the host answers R2Ts.
	err = a.holdsMemory(ctx, func() error {
		_, err := p.queues[0].Poll(nil)
		return err
	})
	if err != nil {
		return err
	}
	a.hold(ctx)
	return nil
}

// givenUp is hungDevice after io_timeout, when only the device still has the commands.
func givenUp(ctx context.Context, a *attack) error {
	defer a.hangs.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	q := p.queues[0]
	if err := p.submit(q, bigCommands, false, nsHung, mdts); err != nil {
		return err
	}
	done := make([]host.Completion, bigCommands)
	err = a.settles("commands of a hung device are given up", func() error {
		if _, err := q.Poll(done); err != nil {
			return err
		}
		if n := q.Outstanding(); n > 0 && ctx.Err() == nil {
			return fmt.Errorf("%d are outstanding", n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.takes(a.hung.Held())
	a.hold(ctx)
	return nil
}

// hungReconnects is a host that ends its queue and connects again while the device hangs. The
// device still has the commands of ended queues.
func hungReconnects(ctx context.Context, a *attack) error {
	const each, rounds = 16, 8 // 128 MiB in all
	defer a.hangs.begin()()
	again := func() error {
		p, err := a.join(ctx, 1)
		if ctx.Err() != nil {
			if err == nil {
				p.close()
			}
			return nil
		}
		if err != nil {
			return nil // it may be refused
		}
		defer p.close()
		if err := p.submit(p.queues[0], each, false, nsHung, mdts); err != nil {
			return err
		}
		sleep(ctx, 20*time.Millisecond)
		return nil
	}
	for range rounds {
		if err := again(); err != nil {
			return err
		}
	}
	a.takes(a.hung.Held())
	a.inPlace()
	return a.repeat(ctx, 100*time.Millisecond, again)
}

// fullDevice is a host with commands that wait for a device which accepts no more, and one command
// in progress.
func fullDevice(ctx context.Context, a *attack) error {
	defer a.hangs.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.submit(p.queues[0], 1, false, nsHung, blockSize); err != nil {
		return err
	}
	for a.hung.Held() == 0 && sleep(ctx, time.Millisecond) {
	}
	defer a.full.begin()()
	if err := p.submit(p.queues[0], bigCommands, false, nsHung, mdts); err != nil {
		return err
	}
	a.takes(1)
	if !sleep(ctx, 100*time.Millisecond) {
		return nil
	}
	a.hold(ctx)
	return nil
}

// queries repeats a query that hangs as fast as possible, on one controller after another. Answers
// that are still cached come at once.
func queries(ctx context.Context, a *attack, op func() *host.Op) error {
	const controllers, each, tries = 20, 30, 1000
	stuck := 0
	for try := 0; stuck < controllers && try < tries; try++ {
		before := a.took.Load()
		p, err := a.join(ctx, 0)
		if err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		var answers []func() (nvme.CQE, error)
		for range each {
			answers = append(answers, p.AdminAsync(short, op()))
		}
		for _, answer := range answers {
			if _, err := answer(); err != nil {
				a.takes(1) // stuck
			}
		}
		cancel()
		p.close()
		if a.took.Load() > before {
			stuck++
		}
	}
	a.hold(ctx)
	return nil
}

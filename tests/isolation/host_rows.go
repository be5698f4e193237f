package isolation

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var hostRows = []row{
	{
		name: "unanswered R2Ts and half capsules", culprit: Host, attacks: "data memory",
		links: onTCP, crossed: true,
		run: unanswered,
	},
	{
		name: "R2Ts answered now and then", culprit: Host, attacks: "deadlines of data memory",
		links: onTCP,
		run:   trickle, alone: true,
		change: func(c *config.Config) { c.TCP.DataTimeout = trickleTimeout },
	},
	{
		name: "unread reads", culprit: Host, attacks: "data memory", links: onTCP, crossed: true,
		run: func(ctx context.Context, a *attack) error { return unread(ctx, a, 0) },
	},
	{
		name: "reads taken byte by byte", culprit: Host, attacks: "data memory", links: onTCP,
		run: func(ctx context.Context, a *attack) error {
			return unread(ctx, a, 10*time.Millisecond)
		},
	},
	{
		name: "unread zero-copy reads of the victim's blocks", culprit: Host,
		attacks: "loaned blocks", links: onTCP,
		run: func(ctx context.Context, a *attack) error { return unreadZeroCopy(ctx, a, false) },
	},
	{
		name: "unread zero-copy reads without data memory", culprit: Host,
		attacks: "loaned blocks and data memory", links: onTCP,
		run: func(ctx context.Context, a *attack) error { return unreadZeroCopy(ctx, a, true) },
	},
	{
		name: "stopped process", culprit: Host, attacks: "data memory", links: onTCP,
		run: stopped,
	},
	{
		name: "aborted writes", culprit: Host, attacks: "data memory", links: onBoth,
		run: abortedWrites, alone: true, busy: true,
	},
	{
		name: "bursts of large reads", culprit: Host, attacks: "turns of the reactor",
		links: onBoth, busy: true, run: bursts,
	},
	{
		name: "overlapping discards and Write Zeroes", culprit: Host,
		attacks: "the range lock of a file", links: onBoth, busy: true, run: overlapping,
	},
	{
		name: "connects again and again", culprit: Host, attacks: "controllers and queues",
		links: onBoth, busy: true, run: churn,
	},
	{
		name: "connections from three addresses", culprit: Host, attacks: "connections",
		links: onTCP, busy: true, alone: true, change: fewConnections,
		run: func(ctx context.Context, a *attack) error { return takeQueues(ctx, a, 8) },
	},
	{
		name: "deep queues", culprit: Host, attacks: "queue memory",
		links: onTCP, busy: true, alone: true,
		change: func(c *config.Config) { c.TCP.MaxDepth, c.TCP.Memory = 1024, 16<<20 },
		run:    func(ctx context.Context, a *attack) error { return takeQueues(ctx, a, 1024) },
	},
	{
		name: "broken PDUs", culprit: Host, attacks: "connections and the log",
		links: onTCP, busy: true, run: brokenPDUs,
	},
	{
		name: "unplugged in the middle of reads", culprit: Host, attacks: "queue pairs",
		links: onRDMA, run: unplugged, busy: true,
	},
}

// unanswered has 64 R2Ts of 1 MiB and 39 half capsules of 128 KiB.
func unanswered(ctx context.Context, a *attack) error {
	const grants, halves, half = 64, 39, 128 << 10
	p, err := a.join(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := a.send(ctx, p, sends(grants, true, nsPool, 1024, mdts)); err != nil {
		return err
	}
	for range halves {
		var op host.Op
		op.Write(nsPool, 1024, half/blockSize, make([]byte, half), 0)
		if _, err := a.send(ctx, p, capsule(&op)[:half/2]); err != nil {
			break // its own limit
		}
	}
	if err := a.holdsMemory(ctx, nil); err != nil {
		return err
	}
	a.hold(ctx)
	return nil
}

// trickleTimeout is the DataTimeout for trickle.
const trickleTimeout = 100 * time.Millisecond

// trickle leaves 50 R2Ts of 1 MiB unanswered, and answers one of 4 KiB before each deadline. That
// must not renew the deadline of the others forever.
func trickle(ctx context.Context, a *attack) error {
	const grants, small, answers = 50, 100, 100
	p, err := a.join(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	r, err := a.send(ctx, p, sends(grants, true, nsPool, 1024, mdts))
	if err != nil {
		return err
	}
	a.takes(1)
	for cid := uint16(small); cid < small+answers; cid++ {
		if err := r.answerOne(cid); err != nil { // the target has ended the connection
			a.hold(ctx)
			return nil
		}
		sleep(context.Background(), trickleTimeout/2) // not ctx: the target must have had the time
	}
	return fmt.Errorf("R2Ts are still open after %d times half their deadline", answers)
}

// answerOne writes a block and answers its R2T.
func (r *raw) answerOne(cid uint16) error {
	var op host.Op
	op.Write(nsPool, 2048, 1, nil, 0)
	op.SQE.SetCID(cid)
	if _, err := r.Write(bare(&op, blockSize)); err != nil {
		return err
	}
	for {
		b, err := r.take()
		if err != nil {
			return err
		}
		switch head := (*pdu.Header)(b); head.Type() {
		case pdu.TypeR2T:
			if r2t := (*pdu.Data)(b); r2t.CCCID() == cid {
				var d pdu.Data
				d.SetH2C(&pdu.Params{}, pdu.LastPDU, cid, r2t.TTAG(), 0, blockSize)
				if _, err := r.Write(append(d[:], make([]byte, blockSize)...)); err != nil {
					return err
				}
			}
		case pdu.TypeCapsuleResp:
			if (*pdu.CapsuleResp)(b).CQE().CID() == cid {
				return nil
			}
		case pdu.TypeC2HTermReq:
			return errors.New("terminated")
		}
	}
}

// unread reads 128 MiB on four queues and receives nothing of it, or a byte from time to time.
func unread(ctx context.Context, a *attack, every time.Duration) error {
	const queues, each = 4, 32
	p, err := a.join(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	for range queues {
		if _, err := a.send(ctx, p, sends(each, false, nsPool, 1024, mdts)); err != nil {
			return err
		}
	}
	if err := a.holdsMemory(ctx, nil); err != nil {
		return err
	}
	a.inPlace()
	if every == 0 {
		a.hold(ctx)
		return nil
	}
	return a.repeat(ctx, every, func() error {
		for _, r := range p.raw {
			c := r.Conn.(patient).Conn // patient sets a deadline of its own
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, _ = c.Read(make([]byte, 1)) // the target may end the connection
		}
		return nil
	})
}

// unreadZeroCopy reads the blocks of the victim, which stay with the transport until they are sent,
// and receives nothing. With short it first takes the memory for copies of them.
func unreadZeroCopy(ctx context.Context, a *attack, short bool) error {
	const reads, size = 100, rangeBlocks * blockSize
	p, err := a.join(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	if short {
		if _, err := a.send(ctx, p, sends(64, true, nsPool, 1024, mdts)); err != nil {
			return err
		}
		if err := a.holdsMemory(ctx, nil); err != nil {
			return err
		}
	}
	if _, err := a.send(ctx, p, sends(reads, false, nsRAM, 0, size)); err != nil {
		return err
	}
	a.takes(1)
	sleep(ctx, 50*time.Millisecond)
	a.hold(ctx)
	return nil
}

// stopped is a stopped process (SIGSTOP) with a full queue of reads.
func stopped(ctx context.Context, a *attack) error {
	cmd, _, err := startChild(ctx, a.addrs[a.link].String())
	if err != nil {
		return err
	}
	a.takes(1)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	a.hold(ctx)
	_ = cmd.Wait() // killed
	return nil
}

// abortedWrites aborts writes that wait for a device, 100 in all. A device that refuses I/O while
// it has none in progress is polled without a pause.
func abortedWrites(ctx context.Context, a *attack) error {
	const writes = 100
	defer a.full.begin()()
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	q := p.queues[0]
	for range writes {
		var op host.Op
		op.Write(nsHung, 0, 1, p.buf[:blockSize], 0)
		cid, err := q.Submit(&op)
		if err != nil {
			return err
		}
		if _, err := q.Poll(nil); err != nil {
			return err
		}
		aborted, err := hosttest.Abort(context.Background(), p.Controller, 1, cid)
		if err != nil {
			return err
		}
		if aborted {
			a.takes(1)
		}
		done := make([]host.Completion, 1)
		if _, err := q.Poll(done); err != nil {
			return err
		}
	}
	a.hold(ctx)
	return nil
}

// bursts reads 2 MiB every 20 ms: the victim waits while such a burst is sent.
func bursts(ctx context.Context, a *attack) error {
	const reads, size = 16, 128 << 10
	p, err := a.join(ctx, 1)
	if err != nil {
		return err
	}
	defer p.close()
	q := p.queues[0]
	a.inPlace()
	return a.repeat(ctx, 20*time.Millisecond, func() error {
		if err := p.submit(q, reads, false, nsPool, size); err != nil {
			return err
		}
		done := make([]host.Completion, reads)
		for q.Outstanding() > 0 {
			n, err := q.Poll(done)
			if err != nil {
				return err
			}
			a.takes(n)
			if err := q.Wait(time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
}

// overlapping keeps eight queues full of discards and Write Zeroes of nearly the whole file, so
// that they keep each other waiting.
func overlapping(ctx context.Context, a *attack) error {
	const queues, blocks, ranges = 8, namespaceSize / blockSize, 16
	p, err := a.join(ctx, queues)
	if err != nil {
		return err
	}
	defer p.close()
	data := p.buf[:ranges*nvme.DSMRangeSize]
	for i := range ranges {
		(*nvme.DSMRange)(data[i*nvme.DSMRangeSize:]).Set(uint64(i), blocks-uint32(i))
	}
	done := make([]host.Completion, 128)
	return a.repeat(ctx, time.Millisecond, func() error {
		for i, q := range p.queues {
			for n := 0; q.Free() > 0; n++ {
				var op host.Op
				if (i+n)%2 == 0 {
					hosttest.SetDiscard(&op, nsFile, data)
				} else {
					hosttest.SetWriteZeroes(&op, nsFile, uint64(n), blocks-uint32(n), 0)
				}
				if _, err := q.Submit(&op); err != nil {
					return err
				}
				a.takes(1)
			}
			if _, err := q.Poll(done); err != nil {
				return err
			}
		}
		a.inPlace()
		return nil
	})
}

// churn repeatedly connects, reads and disconnects.
func churn(ctx context.Context, a *attack) error {
	a.inPlace()
	return a.repeat(ctx, 20*time.Millisecond, func() error {
		p, err := a.join(ctx, 2)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		defer p.close()
		a.takes(1)
		return p.submit(p.queues[1], 4, false, nsPool, mdts)
	})
}

// brokenPDUs violates the protocol on one queue after another.
func brokenPDUs(ctx context.Context, a *attack) error {
	p, err := a.join(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	a.inPlace()
	quiet := a.quiet()
	err = a.repeat(ctx, 10*time.Millisecond, func() error {
		// It may be refused: the last queue with this identifier has not ended yet.
		_, err := a.send(ctx, p, []byte("GET / HTTP/1.1\r\nHost: target\r\n\r\n"))
		if err == nil {
			a.takes(1)
		}
		for _, r := range p.raw {
			_ = r.Close()
		}
		p.raw = nil
		return nil
	})
	return errors.Join(err, quiet())
}

// unplugged loses its link with reads in flight.
func unplugged(ctx context.Context, a *attack) error {
	a.inPlace()
	return a.repeat(ctx, 50*time.Millisecond, func() error {
		p, err := a.joinFrom(ctx, "unplugged", 1, time.Second)
		if err != nil {
			return nil // the last connection may not have ended yet
		}
		defer p.close()
		a.takes(1)
		defer a.fabric.Restore("unplugged", "target")
		if err := p.submit(p.queues[0], 16, false, nsPool, mdts); err != nil {
			return err
		}
		a.fabric.Cut("unplugged", "target")
		sleep(ctx, 50*time.Millisecond)
		return nil
	})
}

// takeQueues connects as many queues as it gets from three addresses. Meanwhile a known host must
// be able to connect.
func takeQueues(ctx context.Context, a *attack, depth int) error {
	var parties []*party
	defer func() {
		for _, p := range parties {
			p.close()
		}
	}()
	return a.besideVisits(ctx, place{}, func() {
		for n := range 3 {
			p := &party{}
			var err error
			if p.Controller, err = host.Connect(ctx, a.transport(a.from(n), "culprit"),
				hostOptions(culpritNQN)); err != nil {
				continue
			}
			parties = append(parties, p)
			for d := depth; d >= 8 && ctx.Err() == nil; {
				q, err := p.OpenQueue(ctx, uint16(len(p.queues)+1), d)
				if err != nil {
					d /= 2
					continue
				}
				p.queues = append(p.queues, q)
				a.takes(1)
			}
		}
	})
}

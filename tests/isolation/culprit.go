package isolation

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// culpritAddress is the first address of culprits over TCP; strangers use the following ones.
const culpritAddress = 100

// from returns the address of a culprit.
func (a *attack) from(n int) (addr netip.Addr) {
	if a.link == nvme.TransportTCP {
		addr = address(culpritAddress + n%100)
	}
	return addr
}

// party is an allowed host with the I/O queues of its controller.
type party struct {
	*host.Controller
	queues []*host.Queue
	raw    []*raw
	buf    []byte // of mdts bytes, for all commands
}

func (p *party) close() {
	for _, q := range p.queues {
		_ = q.Close()
	}
	for _, r := range p.raw {
		_ = r.Close()
	}
	p.Controller.Close()
}

// join connects the allowed culprit, with as many I/O queues of 128 entries.
func (a *attack) join(ctx context.Context, queues int) (*party, error) {
	return a.joinFrom(ctx, "culprit", queues, victimKATO)
}

// joinFrom is join with its own machine and keep alive timeout.
func (a *attack) joinFrom(ctx context.Context, machine string, queues int, kato time.Duration,
) (*party, error) {
	o := hostOptions(culpritNQN)
	o.KATO = kato
	c, err := host.Connect(ctx, a.transport(a.from(0), machine), o)
	if err != nil {
		return nil, err
	}
	p := &party{Controller: c}
	if p.buf, err = c.Map(mdts); err != nil {
		p.close()
		return nil, err
	}
	for len(p.queues) < queues {
		q, err := c.OpenQueue(ctx, uint16(len(p.queues)+1), 128)
		if err != nil {
			p.close()
			return nil, err
		}
		p.queues = append(p.queues, q)
	}
	return p, nil
}

// rawQueue connects one more I/O queue on a connection that nobody reads.
func (a *attack) rawQueue(ctx context.Context, p *party) (*raw, error) {
	r, err := a.dial(ctx, a.from(0))
	if err != nil {
		return nil, err
	}
	p.raw = append(p.raw, r)
	qid := uint16(len(p.queues) + len(p.raw))
	if _, err := r.Associate(qid, 128, hostOptions(culpritNQN), p.CNTLID()); err != nil {
		return nil, fmt.Errorf("queue %d: %w", qid, err)
	}
	return r, nil
}

// send connects one more I/O queue and writes b to it. Nobody reads the responses.
func (a *attack) send(ctx context.Context, p *party, b []byte) (*raw, error) {
	r, err := a.rawQueue(ctx, p)
	if err != nil {
		return nil, err
	}
	_, err = r.Write(b)
	return r, err
}

// submit puts n reads or writes of size bytes on a queue, and sends them.
func (p *party) submit(q *host.Queue, n int, write bool, nsid uint32, size int) error {
	for range n {
		var op host.Op
		if write {
			op.Write(nsid, 0, uint32(size/blockSize), p.buf[:size], 0)
		} else {
			op.Read(nsid, 0, uint32(size/blockSize), p.buf[:size])
		}
		if _, err := q.Submit(&op); err != nil {
			return err
		}
	}
	_, err := q.Poll(make([]host.Completion, 0))
	return err
}

// sends returns n reads or writes of size bytes at a block, without data, for a raw queue.
func sends(n int, write bool, nsid uint32, block uint64, size int) (b []byte) {
	for i := range n {
		var op host.Op
		if write {
			op.Write(nsid, block, uint32(size/blockSize), nil, 0)
		} else {
			op.Read(nsid, block, uint32(size/blockSize), nil)
		}
		op.SQE.SetCID(uint16(i))
		b = append(b, bare(&op, size)...)
	}
	return b
}

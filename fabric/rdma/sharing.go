package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Who shares receives, and the memory of that: all of it is made and freed by ordinary goroutines.

// chunk is the registered memory of chunkSlots slots: capsules, then in-capsule data page by page.
type chunk struct {
	size   int // as it is charged
	region *mem.Region
	mr     verbs.MR
	key    uint32
	base   uint64
}

const chunkSlots = 128

// sharing says whether queues on a device share receives, and why not if that was asked for. Any
// goroutine may call it.
func (t *Transport) sharing(dev verbs.Device) bool {
	if t.cfg.SharedReceives == 0 || dev == nil {
		return false
	}
	attr := dev.Attr()
	switch {
	case attr.IWARP:
		t.shareNot(dev, errors.New("a capsule that finds no receive ends its connection on iWARP"))
	case attr.MaxSRQ < 1 || attr.MaxSRQWR < chunkSlots || attr.MaxSRQSGE > 0 && attr.MaxSRQSGE < 2:
		t.shareNot(dev,
			fmt.Errorf("it has %d shared receive queues of %d receives with %d elements",
				attr.MaxSRQ, attr.MaxSRQWR, attr.MaxSRQSGE))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, not := t.unshared[dev]
	return !not
}

// shareNot gives queues on a device receives of their own from now on, and says so once.
func (t *Transport) shareNot(dev verbs.Device, why error) {
	t.mu.Lock()
	_, known := t.unshared[dev]
	t.unshared[dev] = struct{}{}
	t.mu.Unlock()
	if !known {
		t.cfg.Log.Warn("RDMA: queues on this device do not share receives, each has its own",
			"device", dev.Attr().Name, "reason", why)
	}
}

// share finds or makes the shared receives for one more queue, with enough slots for it; unshare
// undoes that. g.making is held; not on a reactor.
func (p *port) share(depth int) (*shared, error) {
	s := p.shared
	if s == nil || s.worn() {
		var err error
		if s, err = p.newShared(); err != nil {
			p.g.t.shareNot(p.dev.dev, err)
			return nil, nil
		}
		p.shared = s
	}
	for want := min(s.depths+depth, s.capacity); s.slots < want; s.slots += chunkSlots {
		c, err := s.newChunk()
		if err != nil {
			return nil, errors.Join(err, p.unshared(s))
		}
		s.mu.Lock()
		s.made = append(s.made, c)
		s.mu.Unlock()
	}
	s.depths += depth
	s.refs++
	return s, nil
}

// unshare takes a queue's share back. g.making is held; not on a reactor.
func (p *port) unshare(s *shared, depth int) error {
	s.depths -= depth
	s.refs--
	return p.unshared(s)
}

// unshared frees what no queue uses: the next one starts with all slots, whatever happened to
// these.
func (p *port) unshared(s *shared) error {
	if s.refs > 0 {
		return nil
	}
	if p.shared == s {
		p.shared = nil
	}
	detached := make(chan struct{})
	p.g.cfg.Loop.Post(func() {
		s.detach()
		close(detached)
	})
	<-detached
	return s.destroy()
}

func (p *port) newShared() (*shared, error) {
	s := &shared{p: p, icd: p.g.t.cfg.InCapsuleSize, queues: make(map[uint32]*queue)}
	s.capacity = min(p.g.t.cfg.SharedReceives, p.dev.attr.MaxSRQWR)
	if p.dev.attr.MaxCQE > 0 {
		s.capacity = min(s.capacity, p.dev.attr.MaxCQE/2) // see reserve
	}
	s.capacity = s.capacity / chunkSlots * chunkSlots
	var err error
	if s.srq, err = p.dev.pd.CreateSRQ(verbs.SRQInit{MaxWR: s.capacity, MaxSGE: 2}); err != nil {
		return nil, err
	}
	return s, nil
}

// worn says that no queue should be added. A queue that ends while a capsule arrives takes a slot
// along where the device forgets it (rxe), so after an eighth as many ends as there are slots a new
// one is made.
func (s *shared) worn() bool { return s.dead.Load() || s.ended.Load() >= int64(s.capacity/8) }

func (s *shared) newChunk() (_ *chunk, err error) {
	t := s.p.g.t
	size := chunkMemory(s.icd)
	if err := t.charge(size); err != nil {
		return nil, err
	}
	c := &chunk{size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.free(t))
		}
	}()
	if c.region, err = mem.Map("RDMA capsules", size); err != nil {
		return nil, err
	}
	s.p.g.near(c.region)
	if c.mr, err = s.p.dev.pd.RegMR(c.region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, fmt.Errorf(
			"register %d bytes for shared capsules with %s: %w (see the memlock limit)", size,
			s.p.dev.attr.Name, err)
	}
	c.key, c.base = c.mr.LKey(), mem.Addr(c.region.Bytes())
	return c, nil
}

func chunkMemory(icd int) int { return chunkSlots * (capsuleSize + roundUp(icd, pageSize)) }

// free gives the memory of a chunk back that nobody uses. Not on a reactor.
func (c *chunk) free(t *Transport) error {
	if c.mr != nil {
		if err := c.mr.Dereg(); err != nil {
			return fmt.Errorf("free shared capsules: %w", err)
		}
	}
	if c.region != nil {
		if err := c.region.Unmap(); err != nil {
			return err
		}
	}
	t.uncharge(c.size)
	return nil
}

// destroy frees everything. No queue uses it and the reactor has let go of it; not on a reactor.
func (s *shared) destroy() error {
	if err := s.srq.Destroy(); err != nil {
		return fmt.Errorf("free a shared receive queue of %s: %w", s.p.dev.attr.Name, err)
	}
	var errs []error
	for _, c := range append(s.chunks, s.made...) {
		errs = append(errs, c.free(s.p.g.t))
	}
	return errors.Join(errs...)
}

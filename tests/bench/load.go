package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// load keeps one workload running on one queue.
type load struct {
	w          workload
	controller *host.Controller
	queue      *host.Queue
	rng        *rand.Rand
	blocks     uint64 // of the namespace
	next       uint64 // sequential position in blocks
	op         host.Op
	data       [][]byte    // per slot
	began      []time.Time // per slot
	idle       []int       // slots
	done       []host.Completion
}

func newLoad(port int, w workload) (*load, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := connect(ctx, port, w.digests)
	if err != nil {
		return nil, err
	}
	l := &load{w: w, controller: c, rng: rand.New(rand.NewPCG(1, 1)), blocks: namespaceSize / blockSize, done: make([]host.Completion, w.depth)}
	// One entry of a queue stays free.
	if l.queue, err = c.OpenQueue(ctx, 1, min(w.depth+1, 128)); err != nil {
		c.Close()
		return nil, err
	}
	for i := range min(w.depth, l.queue.Depth()) {
		l.data = append(l.data, make([]byte, w.size))
		l.idle = append(l.idle, i)
	}
	l.began = make([]time.Time, len(l.data))
	return l, nil
}

// connect dials the target, waiting until it listens.
func connect(ctx context.Context, port int, digests bool) (*host.Controller, error) {
	t := host.TCP{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), HeaderDigest: digests, DataDigest: digests}
	o := host.Options{HostNQN: "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5", HostID: [16]byte{15: 1}, SubNQN: benchNQN}
	for {
		c, err := host.Connect(ctx, t, o)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the target: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (l *load) close() {
	_ = l.queue.Close()
	l.controller.Close()
}

// run keeps the queue full for d, lets it run empty and returns what was done.
func (l *load) run(d time.Duration) (result, error) {
	var r result
	start := time.Now()
	deadline := start.Add(d)
	now := start
	for now.Before(deadline) || len(l.idle) < len(l.data) {
		if now.Before(deadline) {
			if err := l.submit(now); err != nil {
				return r, err
			}
		}
		n, err := l.queue.Poll(l.done)
		if err != nil {
			return r, err
		}
		now = time.Now()
		for i := range l.done[:n] {
			c := &l.done[i]
			if !c.Status().OK() {
				return r, fmt.Errorf("%s: %w", l.w.name, c.Status())
			}
			r.latency.add(uint64(now.Sub(l.began[c.Token])))
			l.idle = append(l.idle, int(c.Token))
		}
		r.ops += uint64(n)
	}
	r.elapsed = time.Since(start)
	return r, nil
}

func (l *load) submit(now time.Time) error {
	blocks := uint32(l.w.size / blockSize)
	for len(l.idle) > 0 {
		slot := l.idle[len(l.idle)-1]
		slba := l.next
		if l.w.sequential {
			if l.next += uint64(blocks); l.next >= l.blocks {
				l.next = 0
			}
		} else {
			slba = l.rng.Uint64N(l.blocks/uint64(blocks)) * uint64(blocks)
		}
		if l.w.write {
			l.op.Write(1, slba, blocks, l.data[slot], 0)
		} else {
			l.op.Read(1, slba, blocks, l.data[slot])
		}
		l.op.Token = uint64(slot)
		if _, err := l.queue.Submit(&l.op); err == host.ErrFull {
			return nil
		} else if err != nil {
			return err
		}
		l.idle = l.idle[:len(l.idle)-1]
		l.began[slot] = now
	}
	return nil
}

// fillTarget writes the whole namespace once, so that reads find real data.
func fillTarget(port int) error {
	l, err := newLoad(port, workload{name: "fill", size: 128 << 10, depth: 8, sequential: true, write: true})
	if err != nil {
		return err
	}
	defer l.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	data := make([]byte, 128<<10)
	for i := range data {
		data[i] = byte(i * 7)
	}
	for slba := uint64(0); slba < l.blocks; slba += uint64(len(data) / blockSize) {
		if err := l.queue.Write(ctx, 1, slba, uint32(len(data)/blockSize), data, 0); err != nil {
			return fmt.Errorf("fill block %d: %w", slba, err)
		}
	}
	return nil
}

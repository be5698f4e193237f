package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/load"
)

// A host with a queue for each of its CPUs, and an application that waits for each I/O before the
// next, has one I/O in flight, on alternating connections. The IOPS compared with one connection
// show the time that the target spends on the others. Host and kernel lose some as well, because
// more connections take more of the caches. Bare sockets with the same rotation, and an epoll set
// for the server, show how much.

var rotations = []int{1, 4, 16, 100}

func rotationName(queues int) string {
	return fmt.Sprintf("4K random read, 1 in flight going round %d connections", queues)
}

// rotationRound measures one number of connections.
func (b *bench) rotationRound(queues int) error {
	w := random4K(rotationName(queues), 1)
	w.Queues = queues
	floor, err := b.rotationFloor(w)
	if err != nil {
		return err
	}
	s, err := b.server(variant{})
	if err != nil {
		return err
	}
	l, err := connect(s.transport(false), w.Workload)
	if err != nil {
		return err
	}
	defer l.Close()
	var warmUp, o load.Outcome
	for _, m := range []struct {
		d time.Duration
		o *load.Outcome
	}{{b.duration / 4, &warmUp}, {b.duration, &o}} { // warm up first
		if err := l.Rotate(m.d, m.o); err != nil {
			return err
		}
	}
	b.record(w, whoReference, floor)
	b.record(w, whoTarget, figuresOf(&o))
	return nil
}

// rotationFloor measures bare sockets.
func (b *bench) rotationFloor(w workload) (figures, error) {
	t := floorTraffic{Pattern: w.pattern(), depth: 1, Conns: w.Queues, Events: w.Queues > 1}
	s, err := startFloor(b.serverCPU, t)
	if err != nil {
		return nil, err
	}
	iops, err := rotateFloor(s.port, t, b.duration)
	return figures{"iops": iops}, errors.Join(err, s.stop())
}

// rotateFloor sends one request after another for d, each on the next connection, and returns the
// number of requests answered per second.
func rotateFloor(port int, t floorTraffic, d time.Duration) (float64, error) {
	shape := t.Pattern[0]
	clients := make([]*floorClient, t.Conns)
	for i := range clients {
		fd, err := dial(port)
		if err != nil {
			return 0, err
		}
		defer func() { _ = unix.Close(fd) }()
		clients[i] = &floorClient{
			fd: fd, pattern: t.Pattern,
			out: make([]byte, shape.Request), in: make([]byte, shape.Response),
		}
	}
	start := time.Now()
	for i := 0; ; i++ {
		c := clients[i%len(clients)]
		for c.unsent = shape.Request; c.done <= uint64(i/len(clients)); {
			if err := c.poll(); err != nil {
				return 0, err
			}
		}
		if elapsed := time.Since(start); elapsed >= d {
			return float64(i+1) / elapsed.Seconds(), nil
		}
	}
}

// rotationBounds are one bound for each number of connections.
func rotationBounds() []bound {
	var list []bound
	for _, n := range rotations[1:] {
		row, one := rotationName(n), rotationName(1)
		list = append(list, bound{
			group: nativeGroup, limit: 0.9, atLeast: true,
			claim: fmt.Sprintf("1 in flight going round %d connections over 1: IOPS over "+
				"those of the floor", n),
			value: func(m measured) []float64 {
				return over(over(m.of(row, whoTarget, "iops"), m.of(one, whoTarget, "iops")),
					over(m.of(row, whoReference, "iops"), m.of(one, whoReference, "iops")))
			},
		})
	}
	return list
}

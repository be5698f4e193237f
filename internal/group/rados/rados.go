//go:build cgo

package rados

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// Engine is an instance: one connection to the cluster, which opens the images as well, so that a
// fence hits both. It implements group.Engine.
type Engine struct {
	cluster *rados.Cluster
	id      string
	addr    string

	state, lease, events *rados.Object
	notices              atomic.Int32 // that are wanted
	background           sync.WaitGroup
}

// Connect makes a connection of its own. It takes 10 s at most.
func Connect(cfg Config) (*Engine, error) {
	cluster, err := rados.Connect(cfg.Access)
	if err != nil {
		return nil, err
	}
	e := &Engine{cluster: cluster, id: rand.Text()}
	if e.addr, err = cluster.Addrs(); err != nil {
		cluster.Close()
		return nil, err
	}
	name := cfg.Object()
	for object, suffix := range map[**rados.Object]string{
		&e.state: "", &e.events: "", &e.lease: ".lease",
	} {
		if *object, err = cluster.OpenObject(cfg.Pool, name+suffix, true); err != nil {
			e.Close()
			return nil, err
		}
	}
	return e, nil
}

// Cluster returns the connection. It is valid until Close.
func (e *Engine) Cluster() *rados.Cluster { return e.cluster }

// Instance returns the ID and the addresses of this instance.
func (e *Engine) Instance() (id string, addrs []string) { return e.id, []string{e.addr} }

// FencedItself reports whether a fence of this instance may be its own.
func (e *Engine) FencedItself() bool { return e.cluster.FencedItself() }

// Close ends the connection. It waits for the operations that have begun.
func (e *Engine) Close() {
	e.background.Wait()
	for _, o := range []*rados.Object{e.state, e.events, e.lease} {
		if o != nil {
			o.Close()
		}
	}
	e.cluster.Close()
}

// object is an object with its connection.
type object struct {
	*rados.Object
	*rados.Cluster
}

// Open opens an object on a connection, which it keeps open.
func Open(cluster *rados.Cluster, pool, name string) (Object, error) {
	o, err := cluster.OpenObject(pool, name, false)
	if err != nil {
		return nil, err
	}
	return &object{o, cluster.Use()}, nil
}

func (o *object) Close() {
	o.Object.Close()
	o.Cluster.Close()
}

// known returns err as an error of package group if it is one.
func known(err error) error {
	for _, k := range []struct{ from, to error }{
		{unix.ESHUTDOWN, group.ErrFenced},
		{rados.ErrVersion, group.ErrConflict},
		{unix.EBUSY, group.ErrHeld},
	} {
		if errors.Is(err, k.from) {
			return fmt.Errorf("%w: %w", k.to, err)
		}
	}
	return err
}

// Get implements group.State.
func (e *Engine) Get(ctx context.Context) ([]byte, uint64, error) {
	data, version, err := e.state.Read(ctx, group.MaxRecord+1)
	return data, version, known(err)
}

// Put implements group.State. The other instances are notified in the background.
func (e *Engine) Put(ctx context.Context, data []byte, version uint64) (uint64, error) {
	next, err := e.state.Write(ctx, data, version)
	if err == nil {
		e.notify()
	}
	return next, known(err)
}

// notify notifies the other instances in the background. They look by themselves, too, but later.
func (e *Engine) notify() {
	if e.notices.Add(1) > 1 {
		return // after the one under way
	}
	e.background.Go(func() {
		for n := int32(0); !e.notices.CompareAndSwap(n, 0); {
			n = e.notices.Load()
			_, _ = e.events.Notify(context.Background())
		}
	})
}

// Watch implements group.State.
func (e *Engine) Watch(ctx context.Context, changed func()) error {
	return known(e.events.Watch(ctx, e.id, changed))
}

// Present implements group.State. Earlier versions answer notifications with an empty text.
func (e *Engine) Present(ctx context.Context) ([]string, error) {
	list, err := e.events.Notify(ctx)
	if !slices.Contains(list, e.id) || slices.Contains(list, "") {
		list = nil
	}
	return list, known(err)
}

// Acquire implements group.Lease.
func (e *Engine) Acquire(ctx context.Context, d time.Duration) error {
	err := e.lease.Lock(ctx, e.id, d, false)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// The object is new. Only writes of records make one in a full pool.
		_, err = e.lease.Write(ctx, []byte{'\n'}, 0)
		if err == nil || errors.Is(err, rados.ErrVersion) {
			err = e.lease.Lock(ctx, e.id, d, false)
		}
	}
	return known(err)
}

// Renew implements group.Lease.
func (e *Engine) Renew(ctx context.Context, d time.Duration) error {
	err := e.lease.Lock(ctx, e.id, d, true)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", group.ErrLost, err)
	}
	return known(err)
}

// Release implements group.Lease. The other instances are notified, since one may wait for it.
func (e *Engine) Release(ctx context.Context) error {
	err := e.lease.Unlock(ctx, e.id)
	if err == nil {
		e.notify()
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return known(err)
}

// Lessee implements group.Lease.
func (e *Engine) Lessee(ctx context.Context) (string, error) {
	owner, err := e.lease.Owner(ctx)
	return owner, known(err)
}

// Break implements group.Lease.
func (e *Engine) Break(ctx context.Context, instance string) error {
	return known(e.lease.Break(ctx, instance))
}

// Fence implements group.Fence.
func (e *Engine) Fence(ctx context.Context, at []string, d time.Duration) (time.Duration, error) {
	left, err := e.cluster.Fence(ctx, at, d)
	return left, known(err)
}

var _ group.Engine = (*Engine)(nil)

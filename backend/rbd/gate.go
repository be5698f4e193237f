//go:build cgo

package rbd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Gate opens and closes the images of devices together. Their devices are offline while it is
// closed. The zero value is a closed gate. Any goroutine may call it, but Open and Close exclude
// each other.
type Gate struct {
	mu      sync.Mutex // never held while something waits for the cluster
	holder  *Holder    // nil while it is closed
	devices map[*device]struct{}
	lost    atomic.Bool
}

// Lose notes that the holder has lost the images: another holder fences it before opening them. So
// operations that the cluster does not answer can fail early. Lose does not wait. A call of Close
// follows.
func (g *Gate) Lose() { g.lost.Store(true) }

// Describe makes the devices look at the images within a second or two, because a size has changed.
func (g *Gate) Describe() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for d := range g.devices {
		d.stale.Store(true)
	}
}

// Open opens the images for a holder. Its connection stays open until Close has returned. An image
// that cannot be opened stays offline, and is tried again. It is an error if all of them cannot.
func (g *Gate) Open(h *Holder) error {
	g.lost.Store(false)
	list := g.set(h)
	err := each(list, func(d *device) error { return d.call((*device).follow, d.stop) })
	for _, d := range list {
		if d.image.Load() != nil {
			return nil
		}
	}
	return err
}

// Close closes the images. When it has returned, no operation of the devices is under way, which
// may take as long as the cluster does not answer. It may be called again.
func (g *Gate) Close() {
	_ = each(g.set(nil), func(d *device) error { return d.call((*device).follow, d.closed) })
}

// set sets the holder and returns the devices, whose follow has to be called.
func (g *Gate) set(h *Holder) []*device {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holder = h
	return slices.Collect(maps.Keys(g.devices))
}

// each calls fn for devices at the same time, and waits for all of them.
func each(list []*device, fn func(*device) error) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() {
			if err := fn(d); err != nil {
				errs[i] = fmt.Errorf("image %s: %w", d.cfg.Image, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (g *Gate) add(d *device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.devices == nil {
		g.devices = map[*device]struct{}{}
	}
	g.devices[d] = struct{}{}
}

func (g *Gate) remove(d *device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.devices, d)
}

// follow opens or closes the image as the gate is now. The goroutine of the device calls it.
func (d *device) follow() error {
	g := d.cfg.Gate
	g.mu.Lock()
	h := g.holder
	g.mu.Unlock()
	switch im := d.image.Load(); {
	case h == nil && im != nil:
		d.detach()
	case h == nil:
		d.closeCompanion()
		d.standby(true)
	case im == nil && !h.Cluster.Retired():
		d.reopened = time.Now()
		if err := d.again(d.Info().Identity, h); err != nil {
			d.cfg.Log.Error("an image of a group cannot be opened", "err", err)
			d.standby(false)
			return err
		}
	}
	return nil
}

// closeCompanion ends an Open that has failed and is still writing.
func (d *device) closeCompanion() {
	if d.cfg.Companion != nil {
		d.cfg.Companion.Close()
	}
}

// standby notes whether another machine may serve the image, which is offline.
func (d *device) standby(on bool) {
	info := d.Info()
	info.Standby = on
	d.change(nil, info)
}

// lasting is the least rest of a fence that ends the use of an image. Groups fence for longer.
const lasting = 24 * time.Hour

// alone is the group of targets without a group, for the lock of an image.
const alone = "none"

// hold keeps other groups from opening the image, which is open for writing, until it is closed. It
// takes a lock of the header. Gateways of the same group share it, so a lock left by a gateway that
// was killed does not block the next one. If h is nil, the target has no group.
func (im *image) hold(ctx context.Context, h *Holder, header string) error {
	if h == nil {
		h = &Holder{Group: alone, Instance: "target"}
	}
	for range 3 {
		if err := im.checkGroups(ctx, h, header); err != nil {
			return err
		}
		switch err := im.pool.Share(header, h.Instance, h.Group); err {
		case nil:
			im.header, im.owner = header, h.Instance
			// An earlier holder may be fenced. Its writes are refused from now on.
			return im.cluster.WaitForLatestMap(ctx)
		case unix.EBUSY: // just now
		default:
			return fmt.Errorf("cannot be locked: %w", err)
		}
	}
	return fmt.Errorf("%w by other groups again and again", backend.ErrInUse)
}

// checkGroups returns an error if a gateway of another group has the image open. It ends the locks
// of connections that are fenced for long, which do not write any more.
func (im *image) checkGroups(ctx context.Context, h *Holder, header string) error {
	group, list, err := im.pool.Sharers(header)
	if err != nil {
		return fmt.Errorf("its locks cannot be read: %w", err)
	}
	if len(list) == 0 {
		return nil
	}
	ours := h.Group == group
	fences, err := im.cluster.Blocklist(ctx)
	if ours && err != nil {
		return nil // the locks are ended later
	}
	if err != nil {
		return fmt.Errorf("its users are not known: %w", err)
	}
	for i := range list {
		by := &list[i]
		if time.Until(fences[by.Addr]) >= lasting {
			if err := im.pool.Evict(header, by); err != nil && err != unix.ENOENT {
				return fmt.Errorf("the lock of a fenced gateway cannot be ended: %w", err)
			}
		} else if !ours {
			who := fmt.Sprintf("the gateway %s of the group %s", by.Owner, group)
			if group == alone {
				who = "a target without the key group, at " + by.Addr
			}
			return backend.WithHint(fmt.Errorf("%w by %s", backend.ErrInUse, who), "Set "+
				"ana_group of the image, and group.pool, to the same at all gateways. If that one "+
				"has ended for good: ceph osd blocklist add "+by.Addr+" 315360000.")
		}
	}
	return im.cluster.WaitForLatestMap(ctx) // it knows the fences
}

// detach takes the image offline and closes it when its operations have ended.
func (d *device) detach() {
	old, info := d.image.Swap(nil), d.Info()
	info.Offline, info.Standby, info.Elsewhere = true, true, d.cfg.Gate.lost.Load()
	d.change(nil, info)
	_, _ = d.settle(old, nil, nil)
	old.close()
	d.safe.Store(true)
}

// call runs fn on the goroutine of the device, or nothing after the device is closed: when over is,
// which is its stop, or closed to wait until the image is closed as well.
func (d *device) call(fn func(*device) error, over <-chan struct{}) error {
	done := make(chan error, 1)
	select {
	case d.calls <- func() { done <- fn(d) }:
		return <-done
	case <-over:
		return nil
	}
}

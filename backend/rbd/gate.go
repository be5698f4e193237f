//go:build cgo

package rbd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Gate opens and closes the images of devices together. Their devices are offline while it is
// closed. The zero value is a closed gate. Any goroutine may call it.
type Gate struct {
	mu      sync.Mutex // held while devices open and close images
	holder  *Holder    // nil while it is closed
	devices map[*device]struct{}
}

// Open opens the images for a holder. Its connection stays open until Close has returned. An image
// that cannot be opened stays offline, and is tried again. It is an error if all of them cannot.
func (g *Gate) Open(h *Holder) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holder = h
	err := g.each(func(d *device) error { return d.attach(h) })
	for d := range g.devices {
		if d.image.Load() != nil {
			return nil
		}
	}
	return err
}

// retry opens the image of a device that is lost, or could not be opened, while the gate is open.
// The goroutine of the device calls it.
func (g *Gate) retry(d *device) {
	if d.image.Load() != nil || time.Since(d.reopened) < retryInterval || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if _, in := g.devices[d]; !in || g.holder == nil || g.holder.Cluster.Retired() {
		return
	}
	d.reopened = time.Now()
	if err := d.again(d.Info().Identity, g.holder); err != nil {
		d.cfg.Log.Warn("an image cannot be opened again", "err", err)
		return
	}
	d.cfg.Log.Warn("an image is back")
}

// Close closes the images. When it has returned, no operation of the devices is under way, which
// may take as long as the cluster does not answer. It may be called again.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holder = nil
	_ = g.each(func(d *device) error {
		d.detach()
		return nil
	})
}

// each calls fn for all devices at the same time.
func (g *Gate) each(fn func(*device) error) error {
	list := slices.Collect(maps.Keys(g.devices))
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
	if g.holder != nil {
		_ = d.attach(g.holder) // it is in the log, and tried again
	}
}

func (g *Gate) remove(d *device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.devices, d)
}

// attach opens the image for a holder.
func (d *device) attach(h *Holder) error {
	var err error
	d.call(func() {
		if d.image.Load() == nil {
			d.reopened = time.Now()
			err = d.again(d.Info().Identity, h)
		}
	})
	if err != nil {
		d.cfg.Log.Error("an image of a group cannot be opened", "err", err)
	}
	return err
}

// lasting is the least rest of a fence that ends the use of an image. Groups fence for longer.
const lasting = 24 * time.Hour

// hold keeps other groups from opening the image, which is open for writing, until it is closed. It
// takes a lock of the header, which gateways of the same group share, so the lock of a gateway that
// was killed is not in the way of the next one. Without a holder it only looks for such locks.
func (im *image) hold(ctx context.Context, h *Holder, header string) error {
	for range 3 {
		if err := im.checkGroups(ctx, h, header); err != nil || h == nil {
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
	ours := h != nil && h.Group == group
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
			return backend.WithHint(fmt.Errorf("%w by the gateway %s of the group %s",
				backend.ErrInUse, by.Owner, group), "Set ana_group of the image, and group.pool, "+
				"to the same at all gateways. If that one has ended for good: ceph osd blocklist "+
				"add "+by.Addr+" 315360000.")
		}
	}
	return im.cluster.WaitForLatestMap(ctx) // it knows the fences
}

// detach takes the image offline and closes it when its operations have ended.
func (d *device) detach() {
	d.call(func() {
		old, info := d.image.Swap(nil), d.Info()
		if old == nil {
			return
		}
		info.Offline = true
		d.change(nil, info)
		_, _ = d.settle(old, nil, nil)
		old.close()
		d.safe.Store(true)
	})
}

// call runs fn on the goroutine of the device.
func (d *device) call(fn func()) {
	done := make(chan struct{})
	d.calls <- func() {
		fn()
		close(done)
	}
	<-done
}

//go:build cgo

package rbd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// Gate opens and closes the images of devices together. Their devices are offline while it is
// closed. The zero value is a closed gate. Any goroutine may call it.
type Gate struct {
	mu      sync.Mutex // held while devices open and close images
	cluster *rados.Cluster
	devices map[*device]struct{}
}

// Open opens the images on this connection, which stays open until Close has returned. An image
// that cannot be opened stays offline, and is tried again. It is an error if all of them cannot.
func (g *Gate) Open(cluster *rados.Cluster) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cluster = cluster
	err := g.each(func(d *device) error { return d.attach(cluster) })
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
	if _, in := g.devices[d]; !in || g.cluster == nil || g.cluster.Retired() {
		return
	}
	d.reopened = time.Now()
	if err := d.again(d.Info().Identity, g.cluster); err != nil {
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
	g.cluster = nil
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
	if g.cluster != nil {
		_ = d.attach(g.cluster) // it is in the log, and tried again
	}
}

func (g *Gate) remove(d *device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.devices, d)
}

// attach opens the image on a connection.
func (d *device) attach(cluster *rados.Cluster) error {
	var err error
	d.call(func() {
		if d.image.Load() == nil {
			d.reopened = time.Now()
			err = d.again(d.Info().Identity, cluster)
		}
	})
	if err != nil {
		d.cfg.Log.Error("an image of a group cannot be opened", "err", err)
	}
	return err
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

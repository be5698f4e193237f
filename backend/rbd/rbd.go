//go:build cgo

package rbd

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "rbd.h"
*/
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/rados"
)

// patience is the maximum time to open an image, closePatience the one to close it. Ceph
// itself has no limit.
var patience, closePatience = 15 * time.Second, 5 * time.Second

// checkInterval is the time between checks of the size.
var checkInterval = time.Second

const (
	// describeInterval is the time between descriptions of an image that its gate keeps closed.
	describeInterval = time.Minute
	// silence is the time in which no image of a cluster is opened after one that took longer than
	// patience.
	silence = 5 * time.Second
)

// errFenced is the outcome of operations on a connection that the cluster refuses, and errRefused
// that of operations on a pool that is deleted or that the client may not use any more.
var (
	errFenced  = fmt.Errorf("the cluster has fenced the connection: %w", backend.ErrOffline)
	errRefused = fmt.Errorf("the cluster refuses operations on its pool: %w", backend.ErrOffline)
)

// load loads librbd once.
var load = sync.OnceValue(func() error {
	if reason := C.rbd_load(); reason != nil {
		return backend.WithHint(fmt.Errorf("needs Ceph's libraries: %s", C.GoString(reason)),
			"Install librbd1 and librados2, version 16 or later.")
	}
	return nil
})

// image is an open image. Operations on it count as its users.
type image struct {
	cluster *rados.Cluster // shared by the images with the same access; a fence ends it for good
	pool    *rados.Pool
	handle  unsafe.Pointer
	header  string // the object with the lock of owner; "": there is no lock
	owner   string
	with    Companion // which is open; nil for none

	users   atomic.Int64
	retired atomic.Bool   // it gets no further users
	idle    chan struct{} // gets a value when a retired image has no users
}

// served has the images of open devices, by identity.
var served = struct {
	sync.Mutex
	devices map[string]*device
}{devices: map[string]*device{}}

// late has the images that were not open after patience and are still being opened, since each
// holds a thread, and the end of the last patience with each cluster, since many images may wait
// for the same one.
var late = struct {
	sync.Mutex
	images map[Config]bool
	last   map[rados.Access]time.Time
}{images: map[Config]bool{}, last: map[rados.Access]time.Time{}}

// openImage opens the image of cfg and describes it. The connection is that of the holder, or a
// shared one if that is nil.
func openImage(cfg *Config, on *Holder) (*image, *backend.Info, error) {
	if err := load(); err != nil {
		return nil, nil, err
	}
	key := Config{Image: cfg.Image, Ceph: cfg.Ceph}
	slow := backend.WithHint(fmt.Errorf("was not opened within %v: %w", patience,
		backend.ErrOffline), "Look at \"ceph health\".")
	late.Lock()
	last, ok := late.last[cfg.Ceph]
	wait := late.images[key] || on == nil && ok && time.Since(last) < silence
	late.Unlock()
	if wait {
		return nil, nil, slow
	}
	type result struct {
		im   *image
		info *backend.Info
		err  error
	}
	done, expired := make(chan result), make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer cancel()
		im, info, err := cfg.open(ctx, on)
		select {
		case done <- result{im, info, err}:
		case <-expired:
			if err == nil {
				im.close()
			}
			late.Lock()
			defer late.Unlock()
			delete(late.images, key)
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.im, r.info, r.err
	case <-timer.C:
		late.Lock()
		defer late.Unlock()
		late.images[key], late.last[cfg.Ceph] = true, time.Now()
		close(expired)
		return nil, nil, slow
	}
}

// open is openImage without a deadline, except that it waits for the connection until ctx ends.
func (cfg *Config) open(ctx context.Context, on *Holder) (*image, *backend.Info, error) {
	name, err := ParseName(cfg.Image)
	if err != nil {
		return nil, nil, err
	}
	if name.Snapshot != "" && !cfg.ReadOnly {
		return nil, nil, backend.WithHint(errors.New("is a snapshot, which takes no writes"),
			"Make the namespace read_only.")
	}
	var cluster *rados.Cluster
	if on != nil {
		cluster = on.Cluster.Use()
	} else if cluster, err = rados.Share(ctx, cfg.Ceph); err != nil {
		return nil, nil, err
	}
	if on == nil && cfg.writes() && cfg.Journal != nil {
		if err := cluster.Record(ctx, cfg.Journal); err != nil {
			cluster.Close()
			return nil, nil, err
		}
	}
	im := &image{cluster: cluster, idle: make(chan struct{}, 1)}
	if err := im.open(&name, cfg.ReadOnly); err != nil {
		if err == unix.ESHUTDOWN {
			cluster.Retire()
		}
		cluster.Close()
		return nil, nil, name.explain(cluster.Access(), err)
	}
	info, err := im.describe(cfg, &name)
	if err == nil {
		err = im.checkCaches(cfg.Image, name.Pool)
	}
	if err == nil && !cfg.ReadOnly {
		err = im.checkOthers(cfg.Image)
	}
	if err == nil && cfg.writes() {
		err = im.hold(ctx, on, "rbd_header."+path.Base(info.Identity))
	}
	if err != nil {
		im.close()
		return nil, nil, err
	}
	return im, info, nil
}

// open opens the image of this name. Its error is a unix.Errno.
func (im *image) open(name *Name, readOnly bool) (err error) {
	if im.pool, err = im.cluster.OpenPool(name.Pool, name.Namespace); err != nil {
		return err
	}
	text := C.CString(name.Image)
	defer C.free(unsafe.Pointer(text))
	var snapshot *C.char
	if name.Snapshot != "" {
		snapshot = C.CString(name.Snapshot)
		defer C.free(unsafe.Pointer(snapshot))
	}
	var ro C.int
	if readOnly {
		ro = 1
	}
	if n := C.image_open(im.pool.Handle(), text, snapshot, ro, &im.handle); n < 0 {
		im.pool.Close()
		return unix.Errno(-n)
	}
	return nil
}

// checkCaches returns an error if librbd may have a cache of the image, which would lose completed
// writes.
func (im *image) checkCaches(name, pool string) error {
	root, err := im.cluster.OpenPool(pool, "") // where the settings of the pool are
	if err != nil {
		return fmt.Errorf("its pool cannot be opened: %w", err)
	}
	defer root.Close()
	switch n := C.image_cached(root.Handle(), im.handle); {
	case n < 0:
		return fmt.Errorf("its settings cannot be read: %w", unix.Errno(-n))
	case n > 0:
		return backend.WithHint(errors.New("has a cache by a setting of its own or of its pool, "+
			"rbd_cache or rbd_plugins, which would lose writes"), "Delete it: rbd config image "+
			"rm "+name+" rbd_cache, or rbd config pool rm "+pool+" rbd_cache.")
	}
	return nil
}

// checkOthers returns an error if an image that is to be written has another user.
func (im *image) checkOthers(name string) error {
	switch n := C.image_copy(im.handle); {
	case n < 0:
		return fmt.Errorf("its mirroring cannot be read: %w", unix.Errno(-n))
	case n > 0:
		return backend.WithHint(errors.New("is the copy of a mirrored image, which takes no "+
			"writes"), "Make the namespace read_only, or, if the other image is not used any "+
			"more: rbd mirror image promote "+name+".")
	}
	var client, lock [4096]C.char
	switch n := C.image_lock(im.handle, &client[0], &lock[0], C.size_t(len(lock))); {
	case n < 0:
		return fmt.Errorf("its locks cannot be read: %w", unix.Errno(-n))
	case n > 0:
		by, id := C.GoString(&client[0]), C.GoString(&lock[0])
		return backend.WithHint(fmt.Errorf("%w by %s, which has locked it (%q)", backend.ErrInUse,
			by, id), fmt.Sprintf("End that use, or, if it has ended: rbd lock rm %s %q %s.", name,
			id, by))
	}
	return nil
}

// missing is the error for an image that does not exist, and may appear.
type missing struct{ error }

func (missing) Is(err error) bool { return err == backend.ErrOffline }

// explain describes the failure to open an image.
func (n *Name) explain(c rados.Access, err error) error {
	switch err {
	case unix.ENOENT:
		return backend.WithHint(missing{errors.New("does not exist")}, "Correct the names of pool "+
			"and image (\"rbd ls "+n.Pool+"\" lists them), or make the image with \"rbd create\".")
	case unix.EPERM, unix.EACCES:
		return backend.WithHint(fmt.Errorf("cannot be opened by client.%s", c.User),
			"Allow it, and repeat the other pools of the client, which the command replaces: ceph "+
				"auth caps client."+c.User+" mon 'profile rbd' osd 'profile rbd pool="+n.Pool+"'.")
	case unix.EROFS:
		return backend.WithHint(errors.New("takes no writes"), "Make the namespace read_only.")
	case unix.ESHUTDOWN:
		return errFenced
	case unix.ETIMEDOUT:
		return fmt.Errorf("the cluster does not answer: %w", backend.ErrOffline)
	}
	return fmt.Errorf("cannot be opened: %w", err)
}

// describe returns the description of the image as it is now. It may block.
func (im *image) describe(cfg *Config, name *Name) (*backend.Info, error) {
	var size, unit C.uint64_t
	var id [64]C.char
	if n := C.image_stat(im.handle, &size, &unit, &id[0], C.size_t(len(id))); n < 0 {
		return nil, fmt.Errorf("cannot be described: %w", unix.Errno(-n))
	}
	// Part of a block at the end is not used: librbd would cut off a write of the whole block.
	size -= size % C.uint64_t(max(cfg.BlockSize, 1))
	if err := backend.CheckGeometry(int64(size), cfg.BlockSize); err != nil {
		return nil, err
	}
	if int(unit) < cfg.BlockSize {
		return nil, backend.WithHint(fmt.Errorf("has stripes of %d bytes, so blocks of %d could "+
			"be torn", unit, cfg.BlockSize), "Make block_size smaller.")
	}
	info := &backend.Info{
		Size: int64(size), BlockSize: cfg.BlockSize,
		// An operation on one object is one transaction.
		PhysicalBlockSize: max(cfg.BlockSize, min(page, int(unit))), OptimalIO: int(unit),
		ReadOnly: cfg.ReadOnly, Discard: true, Thin: true,
		// A renamed image keeps its identifier, and a new image with an old name gets a new one.
		Identity: fmt.Sprintf("rbd:%s/%s/%s/%s", im.cluster.FSID(), name.Pool, name.Namespace,
			C.GoString(&id[0])),
	}
	if name.Snapshot != "" {
		info.Identity += "@" + name.Snapshot
	}
	return info, nil
}

const page = 4096

// close closes the image, which has no users. It may block.
func (im *image) close() {
	if im.with != nil {
		im.with.Close()
	}
	C.image_close(im.handle)
	if im.header != "" { // a fenced connection keeps its lock, which others break
		_ = im.pool.Unshare(im.header, im.owner)
	}
	im.pool.Close()
	im.cluster.Close()
}

// use returns the open image with one more user, nil if it is offline.
func (d *device) use() *image {
	im := d.image.Load()
	if im == nil {
		return nil
	}
	im.users.Add(1)
	if d.image.Load() == im { // it stays open while it has this user
		return im
	}
	im.leave(1)
	return nil
}

// Space implements backend.SpaceReporter. Without the feature fast-diff it would cost a request for
// each object, so it is not known then.
func (d *device) Space() (allocated, free int64, err error) {
	im := d.use()
	if im == nil {
		return 0, 0, errFenced
	}
	defer im.leave(1)
	var used C.uint64_t
	n := C.image_space(im.handle, C.uint64_t(d.Info().Size), &used)
	switch err := unix.Errno(-n); {
	case n >= 0:
		return int64(used), -1, nil
	case err == unix.EOPNOTSUPP:
		return 0, 0, fmt.Errorf("space of image %s, which has no fast-diff: %w", d.cfg.Image,
			backend.ErrUnsupported)
	default:
		return 0, 0, fmt.Errorf("space of image %s: %w", d.cfg.Image, err)
	}
}

// drain waits until the image, which gets no further users, has none.
func (im *image) drain() {
	im.retired.Store(true)
	for im.users.Load() != 0 {
		<-im.idle
	}
}

// leave ends n uses. Any goroutine may call it.
func (im *image) leave(n int) {
	if im.users.Add(-int64(n)) == 0 && im.retired.Load() {
		select {
		case im.idle <- struct{}{}:
		default:
		}
	}
}

// reason is why an image cannot be used any more.
type reason struct{ err error }

// device is an image that is served. Its goroutine notices a new size, and opens the image again
// after a fence.
type device struct {
	cfg    Config
	name   Name
	lost   chan reason   // the image cannot be used any more
	hangs  chan struct{} // it does not answer
	calls  chan func()   // of the gate
	stop   chan struct{}
	ended  chan struct{}
	closed chan struct{}

	image     atomic.Pointer[image] // nil while it is offline
	info      atomic.Pointer[backend.Info]
	channels  atomic.Int32
	safe      atomic.Bool // the cluster refuses the operations of the image, which is offline
	stale     atomic.Bool // the image has changed, while the gate was closed
	checking  atomic.Bool // a check runs
	checks    sync.WaitGroup
	refused   string    // why the description could not be used last, in the log already
	reopened  time.Time // the last attempt to open the image again
	described time.Time // the last time while the gate was closed, of check

	mu     sync.Mutex // held while notify runs
	notify func()
}

// Probe reports the errors that Open would return.
func Probe(cfg Config) (r backend.Report) {
	cfg.probes = true
	im, info, err := openImage(&cfg, nil)
	if err != nil {
		r.Add(err)
		return r
	}
	im.close()
	r.Identity = info.Identity
	return r
}

// Examine describes the access to a cluster, in 40 s at most. It changes nothing.
func Examine(c rados.Access) (a Access, err error) {
	if err := load(); err != nil {
		return a, err
	}
	cluster, err := rados.Connect(c)
	if err != nil {
		return a, err
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v := C.library_version()
	a.Library, a.Fences = fmt.Sprintf("%d.%d", v/1000, v%1000), cluster.MayFence(ctx)
	a.Fenced, err = cluster.Fenced(ctx)
	return a, err
}

// Open opens an image. It takes up to 15 s if the cluster does not answer.
func Open(cfg Config) (backend.Device, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)).With("device", cfg.Image)
	d := &device{
		cfg: cfg, lost: make(chan reason, 1), hangs: make(chan struct{}, 1),
		stop: make(chan struct{}), ended: make(chan struct{}), calls: make(chan func()),
		closed: make(chan struct{}),
	}
	first := d.cfg
	first.ReadOnly = cfg.ReadOnly || cfg.Gate != nil
	im, info, err := openImage(&first, nil)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", cfg.Image, err)
	}
	d.name, _ = ParseName(cfg.Image)
	info.ReadOnly = cfg.ReadOnly
	if err := d.claim(info.Identity); err != nil {
		im.close()
		return nil, fmt.Errorf("image %s: %w", cfg.Image, err)
	}
	if cfg.Gate != nil { // it was only described
		im.close()
		im, info.Offline, info.Standby, d.described = nil, true, true, time.Now()
		d.safe.Store(true)
	}
	d.image.Store(im)
	d.info.Store(info)
	if cfg.Gate != nil {
		cfg.Gate.add(d)
	}
	go d.watch()
	return d, nil
}

// claim makes the image that of the device alone. Names and files may differ for the same image.
func (d *device) claim(identity string) error {
	served.Lock()
	defer served.Unlock()
	if other := served.devices[identity]; other != nil {
		return backend.WithHint(fmt.Errorf("%w by another namespace, as %s of %s", backend.ErrInUse,
			other.cfg.Image, other.cfg.Ceph.Conf), "Give each namespace an image of its own.")
	}
	served.devices[identity] = d
	return nil
}

// unclaim ends the claim.
func (d *device) unclaim() {
	served.Lock()
	defer served.Unlock()
	delete(served.devices, d.Info().Identity)
}

func (d *device) Info() backend.Info { return *d.info.Load() }

func (d *device) Notify(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = fn
}

// change sets the description of an image, and calls notify if it is new. It does nothing if the
// device has another image meanwhile; im is nil if the device is offline.
func (d *device) change(im *image, info backend.Info) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.image.Load() != im || info == d.Info() {
		return
	}
	d.info.Store(&info)
	if d.notify != nil {
		d.notify()
	}
}

// watch is the device's goroutine.
func (d *device) watch() {
	defer close(d.ended)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	if d.cfg.Gate != nil {
		_ = d.follow() // it is in the log, and tried again
	}
	for goOn := true; goOn; {
		select {
		case <-d.stop:
			return
		case <-tick.C:
			if d.checking.CompareAndSwap(false, true) {
				d.checks.Go(d.check) // it may wait for the cluster
			}
			if d.cfg.Gate != nil && time.Since(d.reopened) >= RetryInterval {
				_ = d.follow()
			}
		case fn := <-d.calls:
			fn()
		case <-d.hangs:
			if im := d.image.Load(); im != nil && im.users.Load() > 0 {
				goOn = d.leave(errHangs)
			}
		case why := <-d.lost:
			if d.image.Load() != nil { // else the gate has closed it
				goOn = d.leave(why.err)
			}
		}
	}
}

// check compares the image with its description. librbd has the size in memory, and reads it again
// when the cluster notifies it of a change.
func (d *device) check() {
	defer d.checking.Store(false)
	im := d.use()
	if im == nil {
		if d.cfg.Gate != nil &&
			(d.stale.Swap(false) || time.Since(d.described) >= describeInterval) {
			d.describe()
		}
		return
	}
	defer im.leave(1)
	info, err := im.describe(&d.cfg, &d.name)
	reason := ""
	switch {
	case errors.Is(err, unix.ESHUTDOWN), im.cluster.Retired():
		d.lose(errFenced)
	case err != nil:
		if reason = err.Error(); reason != d.refused {
			d.cfg.Log.Warn("the description of an image cannot be used", "err", err)
		}
	default:
		d.change(im, *info)
	}
	d.refused = reason
}

// describe describes an image that its gate keeps closed.
func (d *device) describe() {
	d.described = time.Now()
	cfg := d.cfg
	cfg.ReadOnly = true
	im, info, err := openImage(&cfg, nil)
	if err != nil {
		return // opening the image for the gate fails as well, and reports it
	}
	defer im.close()
	if info.Identity == d.Info().Identity {
		now := d.Info()
		info.ReadOnly, info.Offline = d.cfg.ReadOnly, true
		info.Standby, info.Elsewhere = now.Standby, now.Elsewhere
		d.change(nil, *info)
	}
}

// lose makes the device open the image again. Any goroutine may call it.
func (d *device) lose(why error) {
	select {
	case d.lost <- reason{why}:
	default:
	}
}

// Fence implements backend.Fencer.
func (d *device) Fence() bool {
	if d.safe.Load() || d.cfg.Gate != nil && d.cfg.Gate.lost.Load() {
		return true
	}
	select {
	case d.hangs <- struct{}{}:
	default:
	}
	return false
}

var errHangs = errors.New("it does not answer, so its connection is fenced")

// leave takes the image from the device, waits until its operations have ended, and opens it again.
// If it hangs and answers after all, it is used again. leave returns false if the device is closed
// first.
func (d *device) leave(why error) bool {
	d.cfg.Log.Error("an image is offline", "err", why)
	old, info := d.image.Swap(nil), d.Info()
	info.Offline = true
	d.change(nil, info)
	if why == errFenced {
		old.cluster.Retire()
	}
	why, ended := d.settle(old, why, d.stop)
	if !ended {
		d.image.Store(old) // for Close
		return false
	}
	if why != errHangs || old.cluster.Retired() {
		d.safe.Store(true)
		old.close()
		return d.cfg.Gate != nil || d.reopen() // a gate opens it again
	}
	old.retired.Store(false)
	info.Offline = false
	d.image.Store(old)
	d.change(old, info)
	d.cfg.Log.Warn("an image is back")
	return true
}

// settle waits until the operations of an image, which gets no further ones, have ended. If they
// hang, it fences the connection, and why becomes errFenced. It returns false if stop is closed
// first.
func (d *device) settle(old *image, why error, stop <-chan struct{}) (error, bool) {
	old.retired.Store(true)
	fences, failed := why == errHangs, ""
	for {
		if fences {
			if err := old.cluster.FenceSelf(); err == nil {
				fences, why = false, errFenced
				d.safe.Store(true)
			} else if err.Error() != failed {
				failed = err.Error()
				d.cfg.Log.Error("a connection cannot be fenced, so hosts wait for their answers",
					"err", err)
			}
		}
		if old.users.Load() == 0 {
			return why, true
		}
		select {
		case <-old.idle:
		case <-d.hangs:
			fences = !d.safe.Load()
		case <-time.After(checkInterval):
		case <-stop:
			return why, false
		}
	}
}

// reopen opens the image again. It returns false if the device is closed before that.
func (d *device) reopen() bool {
	retry := time.NewTimer(time.Until(d.reopened.Add(RetryInterval)))
	defer retry.Stop()
	for {
		select {
		case <-d.stop:
			return false
		case <-retry.C:
		}
		d.reopened = time.Now()
		err := d.again(d.Info().Identity, nil)
		if err == nil {
			d.cfg.Log.Warn("an image is back")
			return true
		}
		d.cfg.Log.Warn("an image cannot be opened again", "err", err)
		retry.Reset(RetryInterval)
	}
}

// again opens the image again if it still has this identity.
func (d *device) again(identity string, on *Holder) error {
	if on != nil && !strings.HasPrefix(identity, "rbd:"+on.Cluster.FSID()+"/") {
		return backend.WithHint(errors.New("is in another cluster than the state of its group"),
			"Set group.conf, and ceph.conf of the namespace, to the same cluster.")
	}
	im, info, err := openImage(&d.cfg, on)
	if err != nil {
		return err
	}
	if info.Identity != identity {
		im.close()
		return fmt.Errorf("another image has this name now, and is not touched; restart the "+
			"target to use it: it is %s, not %s", info.Identity, identity)
	}
	if with := d.cfg.Companion; with != nil {
		if err := with.Open(on, identity); err != nil {
			im.close()
			return err
		}
		im.with = with
	}
	select { // of the old image
	case <-d.lost:
	default:
	}
	select {
	case <-d.hangs:
	default:
	}
	d.safe.Store(false)
	d.image.Store(im)
	d.change(im, *info)
	return nil
}

// Close implements backend.Device. It waits 5 s at most: an image of a cluster that does not answer
// is closed when the cluster answers.
func (d *device) Close() error {
	if n := d.channels.Load(); n != 0 {
		return fmt.Errorf("close image %s: %d channels are open", d.cfg.Image, n)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		close(d.stop)
		<-d.ended
		d.checks.Wait()
		if im := d.image.Swap(nil); im != nil {
			im.drain() // Space may use it
			im.close()
		}
		d.closeCompanion()
		close(d.closed)
		if d.cfg.Gate != nil {
			d.cfg.Gate.remove(d)
		}
		d.unclaim()
	}()
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		d.cfg.Log.Warn("an image is closed later, since its cluster does not answer")
	}
	return nil
}

var (
	_ backend.Changer       = (*device)(nil)
	_ backend.Fencer        = (*device)(nil)
	_ backend.SpaceReporter = (*device)(nil)
)

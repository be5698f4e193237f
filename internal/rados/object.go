//go:build cgo

package rados

/*
#include <stdlib.h>
#include "rados.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Object is an object of a pool. Its errors wrap a unix.Errno; ESHUTDOWN means that the cluster has
// fenced the connection. A call that ends with ctx may be carried out later. Any goroutine may call
// the methods.
type Object struct {
	cl    *Cluster
	name  *C.char
	calls chan struct{} // as in Cluster

	mu   sync.Mutex // held while the pool, which has the version of the last operation, is used
	pool *Pool      // nil after Close
}

// OpenObject returns an object, which need not exist. The caller closes it. If alone is set, its
// calls do not wait for other objects.
func (cl *Cluster) OpenObject(pool, name string, alone bool) (*Object, error) {
	p, err := cl.OpenPool(pool, "")
	if err == unix.ENOENT {
		return nil, backend.WithHint(fmt.Errorf("pool %s does not exist: %w", pool, err),
			"Correct its name, or make it: ceph osd pool create "+pool+".")
	}
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", pool, err)
	}
	o := &Object{cl: cl, pool: p, name: C.CString(name), calls: cl.objects}
	if alone {
		o.calls = make(chan struct{}, 1)
	}
	return o, nil
}

// Close waits until the calls that have begun have ended. The connection must be open.
func (o *Object) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pool.Close()
	o.pool = nil
	C.free(unsafe.Pointer(o.name))
}

// do runs fn, which returns the negative number of an error, for one caller at a time.
func do[T any](ctx context.Context, o *Object, what string, fn func() (T, C.int)) (T, error) {
	return call(ctx, o.cl, o.calls, func() (v T, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.pool == nil {
			return v, unix.EBADF
		}
		v, n := fn()
		if n < 0 {
			err = fmt.Errorf("%s object %s: %w", what, C.GoString(o.name), unix.Errno(-n))
		}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			err = o.cl.withCaps(err)
		}
		return v, err
	})
}

// content is an object as it was read.
type content struct {
	data    []byte
	version uint64
}

// Read returns the content, of at most most bytes, and its version. An object that does not exist
// has version 0.
func (o *Object) Read(ctx context.Context, most int) ([]byte, uint64, error) {
	c, err := do(ctx, o, "read", func() (c content, n C.int) {
		c.data = make([]byte, most)
		var version C.uint64_t
		n = C.object_read(o.pool.handle, o.name, (*C.char)(unsafe.Pointer(&c.data[0])),
			C.size_t(most), &version)
		c.data, c.version = c.data[:max(n, 0)], uint64(version)
		if unix.Errno(-n) == unix.ENOENT {
			n = 0
		}
		return c, n
	})
	return c.data, c.version, err
}

// ErrVersion means that an object has another version.
var ErrVersion = errors.New("the object has another version")

// Write replaces the content of an object that has this version, and returns its new version. It
// fails with ErrVersion if the object has another one. A full pool takes it, too.
func (o *Object) Write(ctx context.Context, data []byte, version uint64) (uint64, error) {
	next, err := do(ctx, o, "write", func() (uint64, C.int) {
		v := C.uint64_t(version)
		n := C.object_write(o.pool.handle, o.name, (*C.char)(unsafe.Pointer(&data[0])),
			C.size_t(len(data)), &v)
		return uint64(v), n
	})
	for _, e := range []error{unix.EEXIST, unix.ERANGE, unix.EOVERFLOW} {
		if errors.Is(err, e) {
			err = fmt.Errorf("%w: %w", ErrVersion, err)
		}
	}
	if version != 0 && errors.Is(err, unix.ENOENT) { // it was removed
		err = fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return next, err
}

// Lock takes the lock of the object for owner and for d, or extends it. It fails with EBUSY while
// another owner has it, and with ENOENT if renew is set and this owner does not have it.
func (o *Object) Lock(ctx context.Context, owner string, d time.Duration, renew bool) error {
	var must C.int
	if renew {
		must = 1
	}
	return o.lock(ctx, owner, "lock", func(owner *C.char) C.int {
		return C.object_lock(o.pool.handle, o.name, owner, C.uint64_t(d.Microseconds()), must)
	})
}

// Unlock ends the lock of owner. It fails with ENOENT if owner does not have it.
func (o *Object) Unlock(ctx context.Context, owner string) error {
	return o.lock(ctx, owner, "unlock", func(owner *C.char) C.int {
		return C.object_unlock(o.pool.handle, o.name, owner)
	})
}

func (o *Object) lock(ctx context.Context, owner, what string, fn func(*C.char) C.int) error {
	_, err := do(ctx, o, what, func() (struct{}, C.int) {
		text := C.CString(owner)
		defer C.free(unsafe.Pointer(text))
		return struct{}{}, fn(text)
	})
	return err
}

// locker is the owner of a lock with its client.
type locker struct{ client, owner [128]C.char }

// Owner returns the owner of the lock, "" for none.
func (o *Object) Owner(ctx context.Context) (string, error) {
	l, err := do(ctx, o, "lock of", func() (*locker, C.int) { return o.locker() })
	if err != nil {
		return "", err
	}
	return C.GoString(&l.owner[0]), nil
}

func (o *Object) locker() (*locker, C.int) {
	l := &locker{}
	n := C.object_locker(o.pool.handle, o.name, &l.client[0], C.size_t(len(l.client)), &l.owner[0],
		C.size_t(len(l.owner)))
	if unix.Errno(-n) == unix.ENOENT {
		n = 0
	}
	return l, n
}

// Break ends the lock if owner has it.
func (o *Object) Break(ctx context.Context, owner string) error {
	err := o.lock(ctx, owner, "break the lock of", func(*C.char) C.int {
		l, n := o.locker()
		if n <= 0 || C.GoString(&l.owner[0]) != owner {
			return n
		}
		return C.object_break(o.pool.handle, o.name, &l.client[0], &l.owner[0])
	})
	if errors.Is(err, unix.ENOENT) { // it has ended
		err = nil
	}
	return err
}

// Notify notifies the watches of all clients, and returns the answers that come within a second:
// from clients that run and reach the cluster. The watch of a killed client lasts for another half
// a minute, but gives no answer.
func (o *Object) Notify(ctx context.Context) ([]string, error) {
	return do(ctx, o, "notify", func() ([]string, C.int) {
		var reply *C.char
		var size C.size_t
		n := C.object_notify(o.pool.handle, o.name, 1000, &reply, &size)
		defer C.cluster_free(reply)
		if reply != nil && unix.Errno(-n) == unix.ETIMEDOUT { // some watches have not answered
			n = 0
		}
		return answers(C.GoBytes(unsafe.Pointer(reply), C.int(size))), n
	})
}

// answers returns the texts in the reply to a notification: their number, and for each the client
// and the watch (16 bytes), the length, and the text. Watches that have not answered follow.
func answers(reply []byte) (list []string) {
	const head, number = 16, 4
	if len(reply) < number {
		return nil
	}
	n, rest := binary.LittleEndian.Uint32(reply), reply[number:]
	for ; n > 0 && len(rest) >= head+number; n-- {
		size := uint64(binary.LittleEndian.Uint32(rest[head:]))
		if rest = rest[head+number:]; size > uint64(len(rest)) {
			break
		}
		list = append(list, string(rest[:size]))
		rest = rest[size:]
	}
	return list
}

// Watch calls fn after notifications, several of which may become one call, until ctx ends or the
// watch is lost. Then, or if it cannot begin, it returns the error. It answers notifications with a
// text. The object must exist, and is closed after Watch has returned. Watch waits for the cluster.
func (o *Object) Watch(ctx context.Context, answer string, fn func()) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	events := os.NewFile(uintptr(fd), "eventfd")
	defer func() { _ = events.Close() }()
	w, err := do(context.WithoutCancel(ctx), o, "watch", func() (w *C.struct_watch, n C.int) {
		text := C.CString(answer)
		defer C.free(unsafe.Pointer(text))
		n = C.watch_start(o.pool.handle, o.name, text, C.int(fd), &w)
		return w, n
	})
	if err != nil {
		return err
	}
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		C.watch_stop(o.cl.handle, w)
	}()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		var count [8]byte
		if _, err := events.Read(count[:]); err != nil {
			return ctx.Err()
		}
		if binary.NativeEndian.Uint64(count[:]) >= C.watch_lost {
			return fmt.Errorf("the watch of object %s is lost", C.GoString(o.name))
		}
		fn()
	}
}

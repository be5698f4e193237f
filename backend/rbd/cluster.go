//go:build cgo

package rbd

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "rbd.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// load loads the libraries of Ceph once.
var load = sync.OnceValue(func() error {
	if reason := C.ceph_load(); reason != nil {
		return backend.WithHint(fmt.Errorf("needs Ceph's libraries: %s", C.GoString(reason)),
			"Install librbd1 and librados2, version 16 or later.")
	}
	return nil
})

// cluster is a connection to a cluster. All images with the same Ceph share it, because it has
// about 20 threads. A fence ends it for good; its images are then opened on another connection.
type cluster struct {
	key    Ceph
	handle unsafe.Pointer
	fsid   string
	users  int // images, and openers of images
}

// clusters has the connections that new images may use.
var clusters = struct {
	sync.Mutex
	open map[Ceph]*cluster
	// silent has the time at which the last attempt ended without an answer of a monitor. Within
	// silence no other is made, since many images may wait for the same cluster.
	silent map[Ceph]time.Time
}{open: map[Ceph]*cluster{}, silent: map[Ceph]time.Time{}}

const silence = 5 * time.Second

// connect returns a connection to the cluster, and makes one if there is none, which takes up to
// 10 s. The caller releases it.
func connect(c Ceph) (*cluster, error) {
	clusters.Lock()
	defer clusters.Unlock()
	if cl := clusters.open[c]; cl != nil {
		cl.users++
		return cl, nil
	}
	if at, ok := clusters.silent[c]; ok && time.Since(at) < silence {
		return nil, c.explain(unix.ETIMEDOUT)
	}
	delete(clusters.silent, c)
	if err := c.readable(); err != nil {
		return nil, err
	}
	cl := &cluster{key: c, users: 1}
	user, conf, keyring := C.CString(c.User), C.CString(c.Conf), C.CString(c.Keyring)
	defer C.free(unsafe.Pointer(user))
	defer C.free(unsafe.Pointer(conf))
	defer C.free(unsafe.Pointer(keyring))
	if n := C.cluster_open(user, conf, keyring, &cl.handle); n < 0 {
		if unix.Errno(-n) == unix.ETIMEDOUT {
			clusters.silent[c] = time.Now()
		}
		return nil, c.explain(unix.Errno(-n))
	}
	var id [64]C.char
	if n := C.cluster_fsid(cl.handle, &id[0], C.size_t(len(id))); n < 0 {
		C.cluster_close(cl.handle)
		return nil, fmt.Errorf("the cluster of %s has no FSID: %w", c.Conf, unix.Errno(-n))
	}
	cl.fsid = C.GoString(&id[0])
	clusters.open[c] = cl
	return cl, nil
}

// readable returns an error if a file cannot be read. librados would report a wrong key.
func (c *Ceph) readable() error {
	for _, path := range []string{c.Conf, c.Keyring} {
		if path == "" {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			return backend.WithHint(fmt.Errorf("cannot be reached: %w", err), "Correct ceph.conf "+
				"or ceph.keyring, and let the user that runs the target read the file.")
		}
		_ = f.Close()
	}
	return nil
}

// explain describes the failure of a connection.
func (c *Ceph) explain(err error) error {
	keyring := c.Keyring
	if keyring == "" {
		keyring = "the keyring of " + c.Conf
	}
	switch err {
	case unix.ENOENT:
		return backend.WithHint(fmt.Errorf("cannot be reached: %s, or the key of client.%s in %s, "+
			"is missing", c.Conf, c.User, keyring), "Correct ceph.conf, ceph.user or "+
			"ceph.keyring, and let the user that runs the target read these files.")
	case unix.EACCES, unix.EPERM:
		return backend.WithHint(fmt.Errorf("cannot be reached: the cluster of %s refuses "+
			"client.%s with the key in %s", c.Conf, c.User, keyring), "Write the key that "+
			"\"ceph auth get client."+c.User+"\" shows to the keyring, and let the user that "+
			"runs the target read it.")
	case unix.ETIMEDOUT:
		return backend.WithHint(fmt.Errorf("cannot be reached: no monitor of %s answers: %w",
			c.Conf, backend.ErrOffline), "Check mon_host in that file, the network, and the "+
			"monitors.")
	}
	return fmt.Errorf("cannot be reached with %s as client.%s: %w", c.Conf, c.User, err)
}

// retire makes images opened from now on use another connection.
func (cl *cluster) retire() {
	clusters.Lock()
	defer clusters.Unlock()
	if clusters.open[cl.key] == cl {
		delete(clusters.open, cl.key)
	}
}

// release ends a use of the connection, and closes it after the last one.
func (cl *cluster) release() {
	clusters.Lock()
	cl.users--
	last := cl.users == 0
	if last && clusters.open[cl.key] == cl {
		delete(clusters.open, cl.key)
	}
	clusters.Unlock()
	if last {
		C.cluster_close(cl.handle)
	}
}

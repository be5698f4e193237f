//go:build cgo

package rados

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "rados.h"
*/
import "C"

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// load loads librados once.
var load = sync.OnceValue(func() error {
	if reason := C.cluster_load(); reason != nil {
		return backend.WithHint(fmt.Errorf("needs Ceph's libraries: %s", C.GoString(reason)),
			"Install librbd1 and librados2, version 16 or later.")
	}
	return nil
})

// Cluster is a connection to a cluster, with about 20 threads. Any goroutine may call its methods.
type Cluster struct {
	access Access
	handle unsafe.Pointer
	fsid   string
	now    func() time.Time // on the clock of this machine
	// calls and objects limit the calls that wait for monitors and for objects, since each holds a
	// thread.
	calls, objects chan struct{}

	users   int // guarded by shared
	retired atomic.Bool
	itself  atomic.Bool // FenceSelf has begun

	recording chan struct{} // has a value while Record runs
	journal   Journal       // has the address of this connection
	renewal   *time.Timer   // of short fences of earlier connections; guarded by shared

	fencing  sync.Mutex // held while another connection fences this one
	fencedAt time.Time  // the end of the last attempt
	fenceErr error      // its error
}

// shared has the connections of Share.
var shared = struct {
	sync.Mutex
	attempts map[Access]*attempt
}{attempts: map[Access]*attempt{}}

// attempt makes a connection for all callers of Share that ask meanwhile.
type attempt struct {
	waiting int           // callers
	done    chan struct{} // closed when the rest is set
	cluster *Cluster
	err     error
	ended   time.Time
}

// silence is the time without another attempt after one that no monitor has answered, since many
// users may wait for the same cluster.
const silence = 5 * time.Second

// Share returns a connection that all callers with the same access share, and makes one if there is
// none. The caller closes it. A connection that takes longer to make than ctx allows is
// kept for later callers.
func Share(ctx context.Context, a Access) (*Cluster, error) {
	shared.Lock()
	at := shared.attempts[a]
	if at == nil || at.failed() {
		at = &attempt{done: make(chan struct{})}
		shared.attempts[a] = at
		go at.connect(a)
	}
	if at.cluster != nil {
		at.cluster.users++
		shared.Unlock()
		return at.cluster, nil
	}
	at.waiting++
	shared.Unlock()
	select {
	case <-at.done:
		return at.cluster, at.err
	case <-ctx.Done():
	}
	shared.Lock()
	at.waiting--
	cluster := at.cluster
	shared.Unlock()
	if cluster != nil { // just now, and with this caller among its users
		return cluster, nil
	}
	return nil, a.explain(unix.ETIMEDOUT)
}

// failed reports whether another attempt may be made.
func (at *attempt) failed() bool {
	return at.err != nil &&
		(!errors.Is(at.err, backend.ErrOffline) || time.Since(at.ended) >= silence)
}

func (at *attempt) connect(a Access) {
	cluster, err := Connect(a)
	shared.Lock()
	at.cluster, at.err, at.ended = cluster, err, time.Now()
	if cluster != nil {
		cluster.users += at.waiting
	}
	close(at.done)
	shared.Unlock()
	if cluster != nil {
		cluster.Close() // the use of Connect
	}
}

// Connect returns a connection for this caller alone, which closes it. It knows every fence that
// was made before. It waits for monitors for 20 s at most.
func Connect(a Access) (*Cluster, error) {
	if err := load(); err != nil {
		return nil, err
	}
	if err := a.readable(); err != nil {
		return nil, err
	}
	cl := &Cluster{
		access: a, now: time.Now, users: 1, calls: make(chan struct{}, 4),
		objects: make(chan struct{}, 4), recording: make(chan struct{}, 1),
	}
	user, conf, keyring := C.CString(a.User), C.CString(a.Conf), C.CString(a.Keyring)
	defer C.free(unsafe.Pointer(user))
	defer C.free(unsafe.Pointer(conf))
	defer C.free(unsafe.Pointer(keyring))
	if n := C.cluster_open(user, conf, keyring, &cl.handle); n < 0 {
		return nil, a.explain(unix.Errno(-n))
	}
	var id [64]C.char
	if n := C.cluster_fsid(cl.handle, &id[0], C.size_t(len(id))); n < 0 {
		C.cluster_close(cl.handle)
		return nil, fmt.Errorf("the cluster of %s has no FSID: %w", a.Conf, unix.Errno(-n))
	}
	cl.fsid = C.GoString(&id[0])
	ctx, cancel := context.WithTimeout(context.Background(), monitorTimeout)
	defer cancel()
	if err := cl.WaitForLatestMap(ctx); err != nil {
		cl.Close()
		return nil, a.explain(unix.ETIMEDOUT)
	}
	return cl, nil
}

// monitorTimeout is the time that monitors have to answer: the options in cluster_open.
const monitorTimeout = 10 * time.Second

// readable returns an error if a file cannot be read. librados would report a wrong key.
func (a *Access) readable() error {
	for _, path := range []string{a.Conf, a.Keyring} {
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
func (a *Access) explain(err error) error {
	keyring := cmp.Or(a.Keyring, "the keyring of "+a.Conf)
	switch err {
	case unix.ENOENT:
		return backend.WithHint(fmt.Errorf("cannot be reached: %s, or the key of client.%s in %s, "+
			"is missing", a.Conf, a.User, keyring), "Correct ceph.conf, ceph.user or "+
			"ceph.keyring, and let the user that runs the target read these files.")
	case unix.EACCES, unix.EPERM:
		return backend.WithHint(fmt.Errorf("cannot be reached: the cluster of %s refuses "+
			"client.%s with the key in %s", a.Conf, a.User, keyring), "Write the key that "+
			"\"ceph auth get client."+a.User+"\" shows to the keyring, and let the user that "+
			"runs the target read it.")
	case unix.ETIMEDOUT:
		return backend.WithHint(fmt.Errorf("cannot be reached: no monitor of %s answers: %w",
			a.Conf, backend.ErrOffline), "Check mon_host in that file, the network, and the "+
			"monitors.")
	}
	return fmt.Errorf("cannot be reached with %s as client.%s: %w", a.Conf, a.User, err)
}

// Handle is the rados_t of the connection. It is valid until Close.
func (cl *Cluster) Handle() unsafe.Pointer { return cl.handle }

// Access is the access that the connection was made with.
func (cl *Cluster) Access() Access { return cl.access }

// FSID is the identifier of the cluster.
func (cl *Cluster) FSID() string { return cl.fsid }

// Use adds a use of the connection, which must have one. The caller closes it.
func (cl *Cluster) Use() *Cluster {
	shared.Lock()
	defer shared.Unlock()
	cl.users++
	return cl
}

// Retire makes later callers of Share get another connection. The users of this one should do so.
func (cl *Cluster) Retire() {
	cl.retired.Store(true)
	shared.Lock()
	defer shared.Unlock()
	cl.forget()
}

// Retired reports whether Retire was called.
func (cl *Cluster) Retired() bool { return cl.retired.Load() }

// FencedItself reports whether a fence of this connection may be its own.
func (cl *Cluster) FencedItself() bool { return cl.itself.Load() }

// forget makes the connection one that is not shared. The caller holds the lock.
func (cl *Cluster) forget() {
	if at := shared.attempts[cl.access]; at != nil && at.cluster == cl {
		delete(shared.attempts, cl.access)
	}
}

// Close ends a use of the connection, and ends the connection after the last one. It may block.
func (cl *Cluster) Close() {
	shared.Lock()
	cl.users--
	last := cl.users == 0
	if last {
		cl.forget()
		if cl.renewal != nil {
			cl.renewal.Stop()
		}
	}
	shared.Unlock()
	if !last {
		return
	}
	addr, err := cl.Addrs()
	C.cluster_close(cl.handle)
	if cl.journal != nil && err == nil {
		_ = cl.journal.RemoveConnection(cl.fsid, addr) // else the next process fences it
	}
}

// Record adds this connection, which does not write yet, to a journal until it is closed. It first
// fences the connections of earlier processes: late writes could still come from them. It does
// nothing if it has succeeded before.
func (cl *Cluster) Record(ctx context.Context, j Journal) error {
	select {
	case cl.recording <- struct{}{}:
		defer func() { <-cl.recording }()
	case <-ctx.Done():
		return backend.ErrOffline
	}
	if cl.journal != nil {
		return nil
	}
	left, err := cl.fenceEarlier(ctx, j)
	if err == nil && left < shortFence {
		err = errors.New("another client has fenced them, for too short a time")
	}
	if err != nil {
		return fmt.Errorf("connections of this target that was killed cannot be fenced: %w: %w",
			backend.ErrOffline, err)
	}
	addr, err := cl.Addrs()
	if err == nil {
		err = j.AddConnection(cl.fsid, addr)
	}
	if err == nil {
		cl.journal = j
	}
	return err
}

// fenceEarlier fences the connections of earlier processes, and returns how long they stay fenced.
// If another client has fenced one for less than longFence, they stay in the journal, and
// this connection fences them again at the end, in which it may fail.
func (cl *Cluster) fenceEarlier(ctx context.Context, j Journal) (time.Duration, error) {
	earlier := j.Earlier(cl.fsid)
	if len(earlier) == 0 {
		return fenceTime, nil
	}
	left, err := cl.Fence(ctx, earlier, fenceTime)
	if err != nil || left < longFence {
		shared.Lock()
		defer shared.Unlock()
		if cl.renewal != nil {
			cl.renewal.Stop()
		}
		cl.renewal = time.AfterFunc(max(left, time.Second), func() { cl.fenceAgain(j) })
		return left, err
	}
	for _, addr := range earlier {
		if err := j.RemoveConnection(cl.fsid, addr); err != nil {
			return 0, err
		}
	}
	return left, nil
}

// fenceAgain is fenceEarlier later, unless the connection is closed.
func (cl *Cluster) fenceAgain(j Journal) {
	shared.Lock()
	open := cl.users > 0
	if open {
		cl.users++
	}
	shared.Unlock()
	if !open {
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*monitorTimeout)
	defer cancel()
	_, _ = cl.fenceEarlier(ctx, j)
}

// call runs fn, which waits for the cluster, on a goroutine of its own when calls has room. If ctx
// ends first, fn goes on.
func call[T any](ctx context.Context, cl *Cluster, calls chan struct{}, fn func() (T, error)) (T,
	error,
) {
	type result struct {
		value T
		err   error
	}
	var none T
	select {
	case calls <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	shared.Lock()
	cl.users++
	shared.Unlock()
	done := make(chan result, 1)
	go func() {
		defer cl.Close()
		value, err := fn()
		<-calls
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Addrs returns the address of this connection, ADDR:PORT/NONCE, as "ceph osd blocklist" takes it.
func (cl *Cluster) Addrs() (string, error) {
	var text *C.char
	if n := C.cluster_addrs(cl.handle, &text); n < 0 {
		return "", fmt.Errorf("address of the connection to the cluster of %s: %w", cl.access.Conf,
			unix.Errno(-n))
	}
	defer C.cluster_free(text)
	return C.GoString(text), nil
}

// MonCommand sends a command to the monitors, in the form of "ceph --format json" commands, and
// returns their answer. The error of the monitors is a unix.Errno; they get 10 s to answer.
func (cl *Cluster) MonCommand(ctx context.Context, command any) ([]byte, error) {
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	return call(ctx, cl, cl.calls, func() ([]byte, error) {
		in := C.CString(string(text))
		defer C.free(unsafe.Pointer(in))
		var out, status *C.char
		var outN, statusN C.size_t
		n := C.cluster_command(cl.handle, in, &out, &outN, &status, &statusN)
		defer C.cluster_free(out)
		defer C.cluster_free(status)
		if n < 0 {
			return nil, fmt.Errorf("command %s to the monitors of %s: %w %s", text, cl.access.Conf,
				unix.Errno(-n), C.GoStringN(status, C.int(statusN)))
		}
		return C.GoBytes(unsafe.Pointer(out), C.int(outN)), nil
	})
}

// shortFence is too short to rely on while another fence is made. After longFence no data of a
// process that has ended is in flight.
const shortFence, longFence = time.Minute, time.Hour

// Fence makes the OSDs refuse the operations of the connections with these addresses for d, and
// returns the time for which all of them are refused. That may be shorter than d: the cluster does
// not extend an existing fence (OSDMap::apply_incremental), only make another one after its end. An
// operation of a fenced connection is refused, or is carried out before any operation that this
// connection starts afterwards. The clocks of this machine and of the monitors may differ by less
// than half of d.
func (cl *Cluster) Fence(ctx context.Context, addrs []string, d time.Duration) (time.Duration,
	error,
) {
	until, err := cl.Blocklist(ctx)
	if err != nil {
		return 0, err
	}
	added := false
	for _, addr := range addrs {
		if _, ok := until[addr]; ok {
			continue
		}
		if err := cl.fence(ctx, addr, d); err != nil {
			return 0, err
		}
		added = true
	}
	if added {
		if until, err = cl.Blocklist(ctx); err != nil {
			return 0, err
		}
	}
	left := d
	if end, err := earliest(until, addrs); err != nil {
		return 0, err
	} else if end.Sub(cl.now()) < d/2 {
		if left, err = cl.shortest(ctx, addrs); err != nil {
			return 0, err
		}
	}
	return left, cl.WaitForLatestMap(ctx)
}

// shortest returns the time for which all of these connections are fenced. Only the end of another
// fence, of nobody, shows the time of the monitors.
func (cl *Cluster) shortest(ctx context.Context, addrs []string) (time.Duration, error) {
	nobody := []string{fmt.Sprintf("0.0.0.0:0/%d", 1+rand.Uint32N(1<<31))}
	if err := cl.fence(ctx, nobody[0], time.Minute); err != nil {
		return 0, err
	}
	until, err := cl.Blocklist(ctx)
	if err != nil {
		return 0, err
	}
	end, err := earliest(until, addrs)
	now, err2 := earliest(until, nobody)
	return max(end.Sub(now)+time.Minute, 0), errors.Join(err, err2)
}

// earliest returns the first end of the fences of these addresses.
func earliest(until map[string]time.Time, addrs []string) (end time.Time, err error) {
	for i, addr := range addrs {
		at, ok := until[addr]
		if !ok {
			return end, fmt.Errorf("fence of %s: it is not in the blocklist", addr)
		}
		if i == 0 || at.Before(end) {
			end = at
		}
	}
	return end, nil
}

// fence adds an entry to the blocklist.
func (cl *Cluster) fence(ctx context.Context, addr string, d time.Duration) error {
	_, err := cl.MonCommand(ctx, map[string]any{
		"prefix": "osd blocklist", "blocklistop": "add", "addr": addr,
		"expire": json.Number(fmt.Sprintf("%.3f", d.Seconds())), // "3600" would not be a float
	})
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = cl.withCaps(fmt.Errorf("client.%s may not fence connections at the cluster of %s: %w",
			cl.access.User, cl.access.Conf, unix.EACCES))
	}
	return err
}

// withCaps adds the command that gives the client more rights.
func (cl *Cluster) withCaps(err error) error {
	return backend.WithHint(err, "Allow it, and repeat the OSD capabilities of the client, which "+
		"the command replaces: ceph auth caps client."+cl.access.User+" mon 'profile rbd' osd "+
		"'profile rbd pool=POOL'.")
}

// MayFence returns an error if the client has no right to fence connections. It changes nothing.
func (cl *Cluster) MayFence(ctx context.Context) error {
	// Monitors look at the rights first.
	if err := cl.fence(ctx, "invalid/0", time.Second); !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// Blocklist returns the fenced addresses with the ends of their fences, on the clock of the
// monitors.
func (cl *Cluster) Blocklist(ctx context.Context) (map[string]time.Time, error) {
	text, err := cl.MonCommand(ctx, map[string]any{
		"prefix": "osd blocklist ls", "format": "json",
	})
	if err != nil {
		return nil, err
	}
	var entries []struct{ Addr, Until string }
	// Ranges of addresses follow as another value.
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&entries); err != nil {
		return nil, fmt.Errorf("the blocklist of the cluster cannot be read: %w", err)
	}
	until := make(map[string]time.Time, len(entries))
	for _, e := range entries {
		if until[e.Addr], err = time.Parse("2006-01-02T15:04:05.999999-0700", e.Until); err != nil {
			return nil, fmt.Errorf("the blocklist of the cluster cannot be read: %w", err)
		}
	}
	return until, nil
}

// Fenced returns the fenced connections of this machine with the ends of their fences, as text.
func (cl *Cluster) Fenced(ctx context.Context) (list []string, err error) {
	own, err := cl.Addrs()
	if err != nil {
		return nil, err
	}
	entries, err := cl.Blocklist(ctx)
	machine := own[:strings.LastIndex(own, ":")+1]
	for addr, until := range entries {
		if strings.HasPrefix(addr, machine) {
			list = append(list, addr+" until "+until.Format(time.RFC3339))
		}
	}
	slices.Sort(list)
	return list, err
}

// fenceTime is the duration of fences by FenceSelf. No address is used again, since its nonce is
// random.
const fenceTime = 30 * 24 * time.Hour

// FenceSelf fences this connection and retires it. Another connection is made for that, because
// this one may not get an answer. It fails while a fence is in force that ends sooner, since the
// cluster keeps the end of a fence, and the operations of this connection may outlast it. It takes
// up to 40 s; callers wait for each other, and share an attempt that failed less than a second ago,
// since all images of a connection may hang.
func (cl *Cluster) FenceSelf() error {
	cl.fencing.Lock()
	defer cl.fencing.Unlock()
	if cl.fencedAt.IsZero() || cl.fenceErr != nil && time.Since(cl.fencedAt) >= time.Second {
		cl.fenceErr = cl.fenceSelf()
		cl.fencedAt = time.Now()
	}
	return cl.fenceErr
}

func (cl *Cluster) fenceSelf() error {
	addr, err := cl.Addrs()
	if err != nil {
		return err
	}
	other, err := Connect(cl.access)
	if err != nil {
		return err
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*monitorTimeout)
	defer cancel()
	cl.itself.Store(true)
	left, err := other.Fence(ctx, []string{addr}, fenceTime)
	if err != nil {
		return err
	}
	cl.Retire()
	if left < fenceTime {
		return backend.WithHint(fmt.Errorf("%s is fenced by another client, and that ends too "+
			"soon", addr), "Wait for the end that ceph osd blocklist ls shows, or, as "+
			"administrator: ceph osd blocklist rm "+addr+".")
	}
	return nil
}

// WaitForLatestMap waits until this connection knows every fence that was made before the call.
// Operations that it starts afterwards are carried out after those of fenced connections, or these
// are refused.
func (cl *Cluster) WaitForLatestMap(ctx context.Context) error {
	_, err := call(ctx, cl, cl.calls, func() (struct{}, error) {
		if n := C.cluster_wait(cl.handle); n < 0 {
			return struct{}{}, fmt.Errorf("map of the OSDs of %s: %w", cl.access.Conf,
				unix.Errno(-n))
		}
		return struct{}{}, nil
	})
	return err
}

// Pool is the access to the objects of a pool, in one of its namespaces.
type Pool struct{ handle unsafe.Pointer }

// OpenPool opens a pool; space is a namespace in it, or "". Writes to a full pool fail. The error
// is a unix.Errno, ENOENT if there is no such pool.
func (cl *Cluster) OpenPool(name, space string) (*Pool, error) {
	a, b := C.CString(name), C.CString(space)
	defer C.free(unsafe.Pointer(a))
	defer C.free(unsafe.Pointer(b))
	p := &Pool{}
	if n := C.pool_open(cl.handle, a, b, &p.handle); n < 0 {
		return nil, unix.Errno(-n)
	}
	return p, nil
}

// Handle is the rados_ioctx_t of the pool. It is valid until Close.
func (p *Pool) Handle() unsafe.Pointer { return p.handle }

// Close ends the access. The connection must be open.
func (p *Pool) Close() { C.pool_close(p.handle) }

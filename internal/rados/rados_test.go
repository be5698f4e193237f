//go:build cgo

package rados

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func TestCluster(t *testing.T) {
	c := cephtest.New(t)
	for name, test := range map[string]func(*testing.T, *cephtest.Cluster){
		"Share": share, "Silent": silent, "Fence": fence, "Record": record, "Hung": hung,
		"Refused": refused,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

func admin(c *cephtest.Cluster) Access { return Access{Conf: c.Conf(), User: "admin"} }

// share: callers with the same access have the same connection until it is retired.
func share(t *testing.T, c *cephtest.Cluster) {
	get := func() *Cluster { return testutil.Value(Share(testutil.Context(t), admin(c)))(t) }
	a, b := get(), get()
	testutil.True(t, a == b, "two connections")
	a.Retire()
	other := get()
	testutil.True(t, other != a, "a retired connection")
	a.Close()
	testutil.Check(t, testutil.Err(b.Addrs()))
	b.Close()
	testutil.True(t, get() == other, "a third connection")
	other.Close()
	other.Close()
	testutil.Equal(t, len(shared.attempts), 0, "connections that are left")
}

// silent: monitors that do not answer delay the callers with their access, not longer than these
// want, and nobody else. They share one attempt.
func silent(t *testing.T, c *cephtest.Cluster) {
	open := testutil.Value(Share(testutil.Context(t), admin(c)))(t)
	defer open.Close()
	c.Pause(t, "mon")
	late := admin(c)
	late.Keyring = c.Path("client.admin.keyring")
	got := make(chan *Cluster)
	for range 2 {
		go func() {
			cluster, err := Share(testutil.Context(t), late)
			testutil.Check(t, err)
			got <- cluster
		}()
	}
	testutil.Until(t, "two callers wait", func() bool {
		shared.Lock()
		defer shared.Unlock()
		at := shared.attempts[late]
		return at != nil && at.waiting == 2
	})
	testutil.Value(Share(testutil.Context(t), admin(c)))(t).Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	testutil.Is(t, testutil.Err(Share(ended, late)), backend.ErrOffline, "")
	testutil.Is(t, testutil.Err(open.MonCommand(ended, nil)), context.Canceled, "")
	c.Continue(t, "mon")
	a, b := testutil.Receive(t, "a connection", got), testutil.Receive(t, "a connection", got)
	testutil.True(t, a == b, "two connections")
	testutil.Until(t, "there are two users", func() bool {
		shared.Lock()
		defer shared.Unlock()
		return a.users == 2
	})
	a.Close()
	a.Close()
}

// fence: an address of a connection is fenced.
func fence(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	victim := testutil.Value(Connect(admin(c)))(t)
	defer victim.Close()
	addr := testutil.Value(victim.Addrs())(t)
	other := testutil.Value(Connect(admin(c)))(t)
	defer other.Close()
	testutil.Must(t, testutil.Err(other.Fence(ctx, []string{addr}, time.Hour)))
	list := string(testutil.Value(other.MonCommand(ctx, map[string]any{
		"prefix": "osd blocklist ls",
	}))(t))
	testutil.True(t, strings.Contains(list, addr+" "), "%s is not in %q", addr, list)
	testutil.Equal(t, other.FSID(), victim.FSID(), "FSID")
	err := victim.FenceSelf()
	testutil.Fails(t, err, "by another client", "")
	testutil.True(t, victim.FenceSelf() == err, "another attempt at once")
	// The rest of a short fence does not depend on the clock of this machine.
	const stranger = "127.0.0.1:0/4245"
	c.Ceph(t, "osd", "blocklist", "add", stranger, "1800")
	for _, hours := range []time.Duration{-1, 0, 1} {
		other.now = func() time.Time { return time.Now().Add(hours * time.Hour) }
		left := testutil.Value(other.Fence(ctx, []string{addr, stranger}, fenceTime))(t)
		testutil.Equal(t, left.Round(30*time.Minute), 30*time.Minute, "the rest")
		testutil.Equal(t, left, min(left, 30*time.Minute), "the rest")
	}

	c.Ceph(t, "auth", "get-or-create", "client.reader", "mon", "allow r", "-o",
		c.Path("client.reader.keyring"))
	reader := testutil.Value(Connect(Access{Conf: c.Conf(), User: "reader"}))(t)
	defer reader.Close()
	testutil.Fails(t, testutil.Err(reader.Fence(ctx, []string{"127.0.0.1:0/1"}, time.Hour)),
		"ceph auth caps client.reader mon 'profile rbd'", "")
	object := testutil.Value(reader.OpenObject(cephtest.Pool, "object", false))(t)
	defer object.Close()
	_, _, err = object.Read(ctx, 1)
	testutil.Fails(t, err, "ceph auth caps client.reader mon 'profile rbd'", "")
	testutil.Is(t, err, unix.EPERM, "")
}

// journal has one connection of an earlier process, until that is removed.
type journal struct {
	earlier string
	removed chan string
}

func (j *journal) Earlier(string) []string            { return []string{j.earlier} }
func (j *journal) AddConnection(string, string) error { return nil }
func (j *journal) RemoveConnection(_, a string) error { j.removed <- a; return nil }

// record: a fence that another client has made of an earlier connection is renewed at its end.
func record(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	j := &journal{"127.0.0.1:0/4244", make(chan string, 2)}
	c.Ceph(t, "osd", "blocklist", "add", j.earlier, "1800")
	cluster := testutil.Value(Connect(admin(c)))(t)
	testutil.Must(t, cluster.Record(ctx, j))
	testutil.Equal(t, len(j.removed), 0, "connections that are forgotten")
	c.Ceph(t, "osd", "blocklist", "rm", j.earlier) // its end
	shared.Lock()
	cluster.renewal.Reset(0) // else after half an hour
	shared.Unlock()
	testutil.Equal(t, testutil.Receive(t, "another fence", j.removed), j.earlier, "it is of")
	left := testutil.Value(cluster.Fence(ctx, []string{j.earlier}, 2*fenceTime))(t)
	testutil.Equal(t, int(left.Hours())/24, 29, "whole days for which it is fenced")
	own := testutil.Value(cluster.Addrs())(t)
	cluster.Close()
	testutil.Equal(t, testutil.Receive(t, "the end of the connection", j.removed), own, "")
}

// hung: objects that get no answer do not delay an object that is alone, or the monitors.
func hung(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	cluster := testutil.Value(Connect(admin(c)))(t)
	defer cluster.Close()
	for range cap(cluster.objects) {
		cluster.objects <- struct{}{}
	}
	for _, alone := range []bool{true, false} {
		o := testutil.Value(cluster.OpenObject(cephtest.Pool, "alone", alone))(t)
		defer o.Close()
		if alone {
			testutil.Must(t, o.Lock(ctx, "a", time.Hour, false))
			testutil.Must(t, cluster.WaitForLatestMap(ctx))
			continue
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		testutil.Is(t, o.Unlock(ended, "a"), context.Canceled, "an object that waits")
	}
}

// refused: errors name the cause.
func refused(t *testing.T, c *cephtest.Cluster) {
	testutil.Fails(t, testutil.Err(Connect(Access{Conf: c.Conf(), User: "absent"})),
		"client.absent", "")
	cluster := testutil.Value(Connect(admin(c)))(t)
	defer cluster.Close()
	_, err := cluster.OpenPool("absent", "")
	testutil.Equal(t, err, error(unix.ENOENT), "a missing pool")
	_, err = cluster.OpenObject("absent", "object", false)
	testutil.Fails(t, err, "ceph osd pool create absent", "")
	_, err = cluster.MonCommand(testutil.Context(t), map[string]any{"prefix": "absent"})
	testutil.Is(t, err, unix.EINVAL, "a command that does not exist")

	runtime.LockOSThread() // of nobody now
	defer runtime.UnlockOSThread()
	testutil.Must(t, unix.Setfsuid(65534))
	_, err = Connect(Access{Conf: c.Conf(), User: "nobody"})
	testutil.Must(t, unix.Setfsuid(os.Getuid()))
	testutil.Fails(t, err, c.Conf()+": permission denied", "a file that cannot be read")
}

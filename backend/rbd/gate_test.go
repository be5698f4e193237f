//go:build cgo

package rbd

import (
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// gate: images are open while their gate is, on its connection, also those of later devices. A
// fence ends that connection, and a device does not make another one.
func gate(t *testing.T, c *cephtest.Cluster) {
	g := &Gate{}
	open := func() *device {
		cfg := admin(c, c.Image(t, "8M", "exclusive-lock"))
		cfg.Gate = g
		return mustOpen(t, cfg).(*device)
	}
	first := open()
	size := int64(8 << 20)
	state := func(d *device, offline bool) {
		t.Helper()
		i := d.Info()
		testutil.True(t, i.Offline == offline && i.Standby == offline && i.Size == size &&
			!i.ReadOnly, "%+v", i)
	}
	state(first, true)
	size = 16 << 20
	c.RBD(t, "resize", "--size", "16M", first.cfg.Image)
	g.Describe()
	testutil.Until(t, "the size is seen", func() bool { return first.Info().Size == size })
	state(first, true)
	c.RBD(t, "resize", "--size", "8M", "--allow-shrink", first.cfg.Image)
	g.Describe()
	size = 8 << 20
	testutil.Until(t, "the size is seen", func() bool { return first.Info().Size == size })
	cluster := testutil.Value(rados.Connect(first.cfg.Ceph))(t)
	testutil.Must(t, g.Open(&Holder{Cluster: cluster}))
	second := open()
	testutil.Until(t, "the second device is open", func() bool { return !second.Info().Offline })
	for _, d := range []*device{first, second} {
		state(d, false)
		testutil.True(t, d.image.Load().cluster == cluster, "another connection")
	}
	mustClose(t, second)
	hangs := first.use() // an operation
	g.Lose()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		g.Close()
	}()
	testutil.Until(t, "the gate is lost", func() bool {
		return first.Info().Elsewhere && first.checking.CompareAndSwap(false, true)
	})
	first.describe()
	testutil.True(t, first.Info().Elsewhere, "hosts wait for an operation that hangs")
	first.checking.Store(false)
	hangs.leave(1)
	testutil.Receive(t, "the end of Close", closed)
	state(first, true)
	g.Close()
	silent := func(at time.Time) { // for images without a gate
		late.Lock()
		defer late.Unlock()
		late.last[first.cfg.Ceph] = at
	}
	silent(time.Now())
	testutil.Must(t, g.Open(&Holder{Cluster: cluster}))
	silent(time.Time{})
	testutil.Must(t, cluster.FenceSelf())
	testutil.Until(t, "the device is offline", func() bool {
		return first.Info().Offline && first.safe.Load()
	})
	g.Close()
	state(first, true)
	testutil.True(t, first.image.Load() == nil, "an image is open")
	cluster.Close()
	other := testutil.Value(rados.Connect(first.cfg.Ceph))(t)
	testutil.Must(t, g.Open(&Holder{Cluster: other}))
	state(first, false)
	g.Close()
	c.Pause(t, "osd")
	testutil.Until(t, "a check waits for the cluster", func() bool {
		g.Describe()
		return first.checking.Load()
	})
	var wg sync.WaitGroup
	wg.Go(func() { testutil.Check(t, first.Close()) })
	testutil.Receive(t, "the end of the device", first.ended)
	opened := make(chan error, 1)
	wg.Go(func() { opened <- g.Open(&Holder{Cluster: other}) })
	testutil.Check(t, testutil.Receive(t, "the end of Open, beside a device that ends", opened))
	c.Continue(t, "osd")
	wg.Wait()
	testutil.Receive(t, "the end of Close", first.closed)
	testutil.True(t, !first.checking.Load(), "a check runs after Close")
	other.Close()
	testutil.Equal(t, len(g.devices), 0, "devices that are left")
}

// companion is a Companion that can refuse to be opened.
type companion struct{ refuses, closed atomic.Bool }

func (c *companion) Open(*Holder, string) error {
	c.closed.Store(false)
	if c.refuses.Load() {
		return errors.New("not now")
	}
	return nil
}

func (c *companion) Close() { c.closed.Store(true) }

// gateReadOnly: a read-only image has a gate as well. The companion is closed with the gate, also
// if it could not be opened.
func gateReadOnly(t *testing.T, c *cephtest.Cluster) {
	with := &companion{}
	with.refuses.Store(true)
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.ReadOnly, cfg.Gate, cfg.Companion = true, &Gate{}, with
	dev := mustOpen(t, cfg).(*device)
	cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
	defer cluster.Close()
	h := &Holder{Cluster: cluster}
	testutil.Fails(t, cfg.Gate.Open(h), "not now", "open")
	testutil.True(t, !with.closed.Load(), "it is closed")
	cfg.Gate.Close()
	testutil.True(t, with.closed.Load(), "it is open")
	with.refuses.Store(false)
	testutil.Until(t, "no check runs", func() bool {
		return dev.checking.CompareAndSwap(false, true)
	})
	dev.describe()
	dev.checking.Store(false)
	testutil.True(t, dev.Info().ReadOnly && dev.Info().Offline, "closed: %+v", dev.Info())
	testutil.Must(t, cfg.Gate.Open(h))
	testutil.True(t, dev.Info().ReadOnly && !dev.Info().Offline, "open: %+v", dev.Info())
	mustClose(t, dev)
	testutil.True(t, with.closed.Load(), "it is open")
	cfg.Gate.Close()
}

// gateLost: after the loss of a gate, hosts do not wait for operations that hang, and this gateway
// does not fence them.
func gateLost(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.Gate = &Gate{}
	dev := mustOpen(t, cfg).(*device)
	defer mustClose(t, dev)
	cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
	defer cluster.Close()
	for range 2 {
		testutil.Must(t, cfg.Gate.Open(&Holder{Cluster: cluster}))
		client := backendtest.NewClient(t, dev, 1<<20)
		c.Pause(t, "osd")
		client.Submit(client.Write(0, client.Memory(0, block)))
		testutil.True(t, !dev.Info().Elsewhere && !cfg.Gate.lost.Load(), "it is lost")
		closed := make(chan struct{})
		cfg.Gate.Lose()
		go func() {
			defer close(closed)
			cfg.Gate.Close()
		}()
		testutil.Until(t, "the device is offline", func() bool { return dev.Info().Elsewhere })
		testutil.True(t, dev.Fence() && !dev.safe.Load(), "hosts wait")
		c.Continue(t, "osd")
		client.Wait(1)
		testutil.Receive(t, "the end of Close", closed)
		testutil.True(t, !cluster.Retired(), "the connection was fenced")
		client.Close()
	}
}

// gateHangs: operations that hang while a gate closes are fenced, so that it can be closed.
func gateHangs(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.Gate = &Gate{}
	dev := mustOpen(t, cfg).(*device)
	defer mustClose(t, dev)
	cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
	defer cluster.Close()
	testutil.Must(t, cfg.Gate.Open(&Holder{Cluster: cluster}))
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	c.Pause(t, "osd")
	client.Submit(client.Write(0, client.Memory(0, block)))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		cfg.Gate.Close()
	}()
	testutil.Until(t, "the device is offline", func() bool { return dev.Info().Offline })
	added := make(chan struct{})
	go func() { // as a reload does
		defer close(added)
		cfg.Gate.add(&device{cfg: cfg})
	}()
	testutil.Receive(t, "another device", added)
	testutil.Until(t, "its operations are fenced", dev.Fence)
	c.Continue(t, "osd")
	client.Wait(1)
	testutil.Receive(t, "the end of Close", closed)
}

// gateRetries: an image that cannot be opened with its group is opened later, and does not keep the
// others from their hosts. An error names the client of the group.
func gateRetries(t *testing.T, c *cephtest.Cluster) {
	defer func(d time.Duration) { RetryInterval = d }(RetryInterval)
	RetryInterval = 0
	good, bad := admin(c, c.Image(t, "8M", "layering")), admin(c, c.Image(t, "8M", "layering"))
	good.Gate = &Gate{}
	bad.Gate = good.Gate
	cluster := testutil.Value(rados.Connect(good.Ceph))(t)
	defer cluster.Close()
	second := mustOpen(t, bad)
	defer mustClose(t, second)
	c.RBD(t, "lock", "add", bad.Image, "by hand")
	testutil.Is(t, bad.Gate.Open(&Holder{Cluster: cluster}), backend.ErrInUse,
		"the only image of the group")
	bad.Gate.Close()
	first := mustOpen(t, good)
	defer mustClose(t, first)
	testutil.Must(t, bad.Gate.Open(&Holder{Cluster: cluster}))
	testutil.True(t, !first.Info().Offline && second.Info().Offline, "%+v, %+v", first.Info(),
		second.Info())
	testutil.True(t, !second.Info().Standby, "an image that cannot be opened is with another one")
	var locks []struct{ Locker string }
	testutil.Must(t, json.Unmarshal([]byte(c.RBD(t, "lock", "ls", "--format", "json", bad.Image)),
		&locks))
	c.RBD(t, "lock", "rm", bad.Image, "by hand", locks[0].Locker)
	testutil.Until(t, "the other image is open", func() bool { return !second.Info().Offline })
	bad.Gate.Close()

	c.Ceph(t, "auth", "get-or-create", "client.poor", "mon", "profile rbd", "-o",
		c.Path("client.poor.keyring"))
	poor := testutil.Value(rados.Connect(rados.Access{Conf: c.Conf(), User: "poor"}))(t)
	defer poor.Close()
	testutil.Fails(t, good.Gate.Open(&Holder{Cluster: poor}), "cannot be opened by client.poor", "")
	bad.Gate.Close()
	testutil.True(t, first.Info().Offline && second.Info().Offline, "%+v, %+v", first.Info(),
		second.Info())
}

// replaced: an image that was deleted, and another one with its name, is not opened for its group.
func replaced(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.Gate = &Gate{}
	cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
	defer cluster.Close()
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	open := func() error {
		defer cfg.Gate.Close()
		return cfg.Gate.Open(&Holder{Cluster: cluster})
	}
	testutil.Must(t, open())
	c.RBD(t, "rm", cfg.Image)
	testutil.Fails(t, open(), "does not exist", "a deleted image")
	c.RBD(t, "create", "--size", "8M", "--image-feature", "layering", cfg.Image)
	testutil.Fails(t, open(), "another image has this name now", "")
	testutil.True(t, dev.Info().Offline, "%+v", dev.Info())
}

// groups: an image is open for one group of gateways at a time. The lock of a gateway that was
// killed is not in the way of its own group, nor, when it is fenced for long, of others.
func groups(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "exclusive-lock"))
	cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
	defer cluster.Close()
	pool := testutil.Value(cluster.OpenPool(cephtest.Pool, ""))(t)
	defer pool.Close()
	open := func(g *Gate) *device {
		cfg := cfg
		cfg.Gate = g
		d := mustOpen(t, cfg).(*device)
		d.unclaim() // as if it were the device of another target
		return d
	}
	var a, b Gate
	defer a.Close()
	defer b.Close()
	first, second := open(&a), open(&b)
	header := "rbd_header." + path.Base(first.Info().Identity)
	ofA := &Holder{Cluster: cluster, Group: "nvme/1", Instance: "a/now"}
	ofB := &Holder{Cluster: cluster, Group: "nvme/2", Instance: "b/now"}
	owners := func(want ...string) {
		t.Helper()
		_, list, err := pool.Sharers(header)
		testutil.Must(t, err)
		var got []string
		for _, s := range list {
			got = append(got, s.Owner)
		}
		slices.Sort(got)
		testutil.Equal(t, strings.Join(got, " "), strings.Join(want, " "), "owners of the lock")
	}
	dead := func(owner, group string) (addr string) { // one that was killed
		cluster := testutil.Value(rados.Connect(cfg.Ceph))(t)
		defer cluster.Close()
		pool := testutil.Value(cluster.OpenPool(cephtest.Pool, ""))(t)
		defer pool.Close()
		testutil.Must(t, pool.Share(header, owner, group))
		return testutil.Value(cluster.Addrs())(t)
	}
	refused := func(by, addr string) {
		t.Helper()
		err := b.Open(ofB)
		testutil.Is(t, err, backend.ErrInUse, "")
		testutil.Fails(t, err, "by the gateway "+by+" of the group nvme/1", "")
		testutil.Fails(t, err, "osd blocklist add "+addr+" 3", "")
		testutil.True(t, second.Info().Offline, "the image is open")
		b.Close()
	}

	testutil.Must(t, a.Open(ofA))
	refused("a/now", testutil.Value(cluster.Addrs())(t))
	testutil.Is(t, testutil.Err(Open(cfg)), backend.ErrInUse, "a target without a group")
	report := Probe(cfg)
	testutil.Check(t, report.Err())
	owners("a/now")
	a.Close()
	owners()
	testutil.Must(t, b.Open(ofB))
	testutil.True(t, !second.Info().Offline, "the image is offline")
	b.Close()

	single := mustOpen(t, cfg).(*device)
	single.unclaim()
	err := a.Open(ofA)
	testutil.Is(t, err, backend.ErrInUse, "after a target without a group")
	testutil.Fails(t, err, "a target without the key group, at "+
		testutil.Value(single.image.Load().cluster.Addrs())(t), "")
	a.Close()
	var left []string
	for range 2 { // targets that were killed, or are alive, do not block another one of their kind
		left = append(left, dead("target", alone))
		mustClose(t, single)
		single = mustOpen(t, cfg).(*device)
		single.unclaim()
		owners(slices.Repeat([]string{"target"}, len(left)+1)...)
	}
	mustClose(t, single)
	testutil.Is(t, a.Open(ofA), backend.ErrInUse, "while others may be alive")
	a.Close()
	for _, addr := range left {
		c.Ceph(t, "osd", "blocklist", "add", addr, "315360000")
	}
	testutil.Must(t, a.Open(ofA))
	owners("a/now")
	a.Close()
	owners()

	addr := dead("a/killed", ofA.Group)
	refused("a/killed", addr)
	testutil.Must(t, a.Open(ofA))
	owners("a/killed", "a/now")
	a.Close()
	c.Ceph(t, "osd", "blocklist", "add", addr, "3600")
	refused("a/killed", addr)
	c.Ceph(t, "osd", "blocklist", "rm", addr)
	c.Ceph(t, "osd", "blocklist", "add", addr, "315360000")
	testutil.Must(t, b.Open(ofB))
	owners("b/now")
	b.Close()
	c.Ceph(t, "osd", "blocklist", "add", dead("a/again", ofA.Group), "315360000")
	testutil.Must(t, a.Open(ofA))
	owners("a/now")
	a.Close()

	dead("a/last", ofA.Group)
	mustClose(t, first)
	mustClose(t, second)
	c.RBD(t, "rm", cfg.Image)
}

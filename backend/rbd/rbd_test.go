//go:build cgo

package rbd

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) {
	patience = testutil.Patience
	testutil.Main(m)
}

const block = 512

// admin returns the configuration of an image that the administrator opens.
func admin(c *cephtest.Cluster, image string) Config {
	return Config{Image: image, BlockSize: block, Ceph: rados.Access{Conf: c.Conf(), User: "admin"}}
}

func mustOpen(t *testing.T, cfg Config) backend.Device {
	t.Helper()
	return testutil.Value(Open(cfg))(t)
}

// mustClose closes a device and waits for its goroutines, which Close does not do without end.
func mustClose(t *testing.T, dev backend.Device) {
	t.Helper()
	testutil.Check(t, dev.Close())
	testutil.Receive(t, "the end of the device", dev.(*device).closed)
}

// one submits an operation and returns its error.
func one(c *backendtest.Client, io *backend.IO) error {
	c.Submit(io)
	c.Wait(1)
	return io.Err
}

func write(c *backendtest.Client, off int64, b []byte) error {
	return one(c, &backend.IO{Op: backend.OpWrite, Off: off, Len: int64(len(b)), Segs: c.Segs(b)})
}

func TestCluster(t *testing.T) {
	c := cephtest.New(t)
	for name, features := range map[string]string{
		"shared": "layering", "exclusive": "layering,exclusive-lock,object-map,fast-diff",
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Device {
				dev := mustOpen(t, admin(c, c.Image(t, "8M", features)))
				t.Cleanup(func() { testutil.Receive(t, "its end", dev.(*device).closed) })
				return dev
			}, backendtest.Options{})
		})
	}
	// The suite counts allocations, and a check makes some. No device is left that reads it.
	defer func(d time.Duration) { checkInterval = d }(checkInterval)
	checkInterval = 20 * time.Millisecond
	for name, test := range map[string]func(*testing.T, *cephtest.Cluster){
		"Silent":  silent,
		"Refused": refused, "Resize": resize, "Fence": fence, "Hang": hang, "Full": full,
		"Snapshot": snapshot, "Encrypted": encrypted,
		"LongRanges": longRanges, "Space": space, "Caches": caches, "Layout": layout,
		"Steps": steps,
		"Gate":  gate, "GateHangs": gateHangs, "GateLost": gateLost, "GateRetries": gateRetries,
		"GateReadOnly": gateReadOnly, "Groups": groups,
		"Replaced":    replaced,
		"PartOfBlock": partOfBlock, "Others": others, "Pool": poolGone, "Examine": examine,
		"ShortFence": shortFence,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// refused: errors name the cause, and the remedy.
func refused(t *testing.T, c *cephtest.Cluster) {
	good := admin(c, c.Image(t, "8M", "layering"))
	c.Ceph(t, "auth", "get-or-create", "client.poor", "mon", "profile rbd", "-o",
		c.Path("client.poor.keyring"))
	foreign := c.Path("foreign.keyring")
	testutil.Must(t, os.WriteFile(foreign, []byte("[client.admin]\n\tkey = "+
		"AQBmtVVnAAAAABAAb9e1xTFXF1DCbVHOTTOt5A==\n"), 0o600))
	for name, tc := range map[string]struct {
		change func(cfg *Config)
		want   []string
	}{
		"image": {
			func(cfg *Config) { cfg.Image = "rbd/absent" }, []string{"does not exist", "rbd ls"},
		},
		"pool": {func(cfg *Config) { cfg.Image = "absent/a" }, []string{"does not exist", "pool"}},
		"name": {func(cfg *Config) { cfg.Image = "image" }, []string{"pool/image"}},
		"snapshot": {
			func(cfg *Config) { cfg.Image += "@absent"; cfg.ReadOnly = true },
			[]string{"does not exist"},
		},
		"writes to a snapshot": {
			func(cfg *Config) { cfg.Image += "@absent" }, []string{"takes no writes", "read_only"},
		},
		"conf": {func(cfg *Config) { cfg.Ceph.Conf = "/absent" }, []string{"/absent", "ceph.conf"}},
		"user": {
			func(cfg *Config) { cfg.Ceph.User = "absent" }, []string{"client.absent", "keyring"},
		},
		"caps": {
			func(cfg *Config) { cfg.Ceph.User = "poor" },
			[]string{"ceph auth caps client.poor", "profile rbd pool=rbd"},
		},
		"key": {
			func(cfg *Config) { cfg.Ceph.Keyring = foreign }, []string{"refuses", foreign},
		},
		"block size": {func(cfg *Config) { cfg.BlockSize = 100 }, []string{"power of two"}},
	} {
		cfg := good
		tc.change(&cfg)
		_, err := Open(cfg)
		report := Probe(cfg)
		for _, want := range tc.want {
			testutil.Fails(t, err, want, "%s", name)
			testutil.Fails(t, report.Err(), want, "%s, Probe", name)
		}
	}
	report := Probe(good)
	testutil.Check(t, report.Err())
	good.Image = "rbd/absent" // it may appear
	testutil.Is(t, testutil.Err(Open(good)), backend.ErrOffline, "a missing image")
	testutil.True(t, Probe(good).Errors[0].Offline, "a missing image is wrong for good")
}

// resize: hosts get another size when the image gets one.
func resize(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	notified := make(chan int64, 10)
	dev.(backend.Changer).Notify(func() { notified <- dev.Info().Size })
	c.RBD(t, "resize", "--size", "16M", cfg.Image)
	testutil.Equal(t, testutil.Receive(t, "the larger size", notified), 16<<20, "size")
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	testutil.Check(t, write(client, 16<<20-block, client.Memory(0, block)))
	c.RBD(t, "resize", "--size", "8M", "--allow-shrink", cfg.Image)
	var err error
	testutil.Until(t, "a write fails", func() bool {
		err = write(client, 8<<20, client.Memory(0, block))
		return err != nil
	})
	testutil.Is(t, err, backend.ErrOutOfRange, "the first that fails")
	testutil.Equal(t, testutil.Receive(t, "the smaller size", notified), 8<<20, "size")
	testutil.Is(t, write(client, 8<<20, client.Memory(0, block)), backend.ErrOutOfRange, "")
}

// fence: no write lands after the cluster has fenced the connection. The image is offline, and
// comes back on another connection with its content.
func fence(t *testing.T, c *cephtest.Cluster) {
	for name, features := range map[string]string{
		"shared": "layering", "exclusive": "layering,exclusive-lock",
	} {
		t.Run(name, func(t *testing.T) {
			var log testutil.Log
			cfg := admin(c, c.Image(t, "8M", features))
			cfg.Log = log.Logger()
			dev := mustOpen(t, cfg)
			defer mustClose(t, dev)
			states := make(chan bool, 10)
			dev.(backend.Changer).Notify(func() { states <- dev.Info().Offline })
			client := backendtest.NewClient(t, dev, 1<<20)
			defer client.Close()
			data := client.Memory(0, 4096)
			c.Ceph(t, "osd", "blocklist", "add", watcher(t, c, cfg.Image))
			// The OSD notices the fence a little later. A write fails, unless the device is back.
			last := 0
			testutil.Until(t, "the fence is noticed", func() bool {
				data[0]++
				if err := write(client, 0, data); err == nil {
					last = int(data[0])
				} else {
					testutil.Is(t, err, backend.ErrOffline, "write after the fence")
				}
				return len(states) > 0
			})
			testutil.MustTrue(t, testutil.Receive(t, "offline", states), "online")
			testutil.MustTrue(t, !testutil.Receive(t, "online again", states), "offline")
			got := client.Memory(4096, 4096)
			testutil.Must(t, one(client, client.Read(0, got)))
			testutil.MustEqual(t, int(got[0]), last, "the last write that succeeded")
			testutil.Check(t, write(client, 0, data))
			testutil.True(t, strings.Contains(log.String(), "fenced"), "%s", log.String())
		})
	}
}

// hang: the connection of an image that does not answer is fenced before its operations are safe.
// Without the right to do so they are not, and an image that answers after all keeps its
// connection. Otherwise no write that was sent before is carried out after a later one.
func hang(t *testing.T, c *cephtest.Cluster) {
	c.Ceph(t, "auth", "get-or-create", "client.weak", "mon", "allow r", "osd", "allow *", "-o",
		c.Path("client.weak.keyring"))
	var log testutil.Log
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.Log, cfg.Ceph.User = log.Logger(), "weak"
	opened := mustOpen(t, cfg)
	defer mustClose(t, opened)
	cfg.Image = c.Image(t, "8M", "layering")
	idle := mustOpen(t, cfg)
	defer mustClose(t, idle)
	dev, other := opened.(*device), idle.(*device)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	first, second := client.Memory(0, block), client.Memory(4096, block)
	first[0], second[0] = 1, 2
	victim := dev.image.Load().cluster

	c.Pause(t, "osd")
	client.Submit(client.Write(0, first))
	testutil.Until(t, "the fence fails", func() bool {
		return !dev.Fence() && strings.Contains(log.String(),
			"ceph auth caps client.weak mon 'profile rbd'")
	})
	testutil.True(t, dev.Info().Offline && !dev.Fence(), "%+v", dev.Info())
	c.Continue(t, "osd")
	client.Wait(1)
	testutil.Until(t, "it is back", func() bool { return !dev.Info().Offline })
	testutil.MustTrue(t, dev.image.Load().cluster == victim, "another connection")

	c.Ceph(t, "auth", "caps", "client.weak", "mon", "profile rbd", "osd", "allow *")
	c.Pause(t, "osd")
	late := client.Write(0, first)
	client.Submit(late)
	testutil.Until(t, "it is fenced", dev.Fence)
	addr := testutil.Value(victim.Addrs())(t)
	testutil.True(t, strings.Contains(c.Ceph(t, "osd", "blocklist", "ls"), addr+" "),
		"%s is not fenced", addr)
	c.Continue(t, "osd")
	client.Wait(1)
	testutil.True(t, late.Err == nil || errors.Is(late.Err, backend.ErrOffline), "%v", late.Err)
	testutil.Until(t, "both are back", func() bool {
		a, b := dev.image.Load(), other.image.Load()
		return a != nil && b != nil && a.cluster != victim && b.cluster == a.cluster
	})
	testutil.Must(t, write(client, 0, second))
	got := client.Memory(8192, block)
	testutil.Must(t, one(client, client.Read(0, got)))
	testutil.Equal(t, got[0], 2, "the later write")
	testutil.True(t, !dev.safe.Load(), "operations of the new connection are refused")
}

// shortFence: operations are not safe while the connection is fenced by another client for a time
// that they may outlast.
func shortFence(t *testing.T, c *cephtest.Cluster) {
	var log testutil.Log
	cfg := admin(c, c.Image(t, "8M", "layering"))
	cfg.Log = log.Logger()
	dev := mustOpen(t, cfg).(*device)
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	victim := dev.image.Load().cluster
	addr := testutil.Value(victim.Addrs())(t)
	c.Ceph(t, "osd", "set", "pause")
	testutil.Must(t, victim.WaitForLatestMap(testutil.Context(t)))
	late := client.Write(0, client.Memory(0, block))
	client.Submit(late)
	c.Ceph(t, "osd", "blocklist", "add", addr, "3600")
	testutil.Until(t, "the fence is too short", func() bool {
		return dev.Fence() || strings.Contains(log.String(), "that ends too soon")
	})
	testutil.True(t, !dev.Fence(), "a write is safe that the end of a fence would let through")
	c.Ceph(t, "osd", "blocklist", "rm", addr) // its end
	testutil.Until(t, "it is fenced for good", dev.Fence)
	c.Ceph(t, "osd", "unset", "pause")
	client.Wait(1)
	testutil.Is(t, late.Err, backend.ErrOffline, "")
}

// others: an image that has another user is not opened for writing.
func others(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering,exclusive-lock"))
	dev := mustOpen(t, cfg)
	testutil.Must(t, os.Symlink(c.Conf(), c.Path("other.conf")))
	same := cfg
	same.Ceph.Conf = c.Path("other.conf")
	_, err := Open(same)
	testutil.Is(t, err, backend.ErrInUse, "the same image by another name")
	testutil.Fails(t, err, cfg.Image+" of "+c.Conf(), "")
	testutil.Equal(t, Probe(same).Identity, dev.Info().Identity, "identity")
	mustClose(t, dev)
	mustClose(t, mustOpen(t, same))

	c.RBD(t, "lock", "add", cfg.Image, "by hand")
	_, err = Open(cfg)
	testutil.Is(t, err, backend.ErrInUse, "a locked image")
	testutil.Fails(t, err, "rbd lock rm "+cfg.Image+` "by hand" client.`, "")
	reader := cfg
	reader.ReadOnly = true
	mustClose(t, mustOpen(t, reader))

	cfg.Image = c.Image(t, "8M", "layering,exclusive-lock")
	c.RBD(t, "mirror", "pool", "enable", cephtest.Pool, "image")
	c.RBD(t, "mirror", "image", "enable", cfg.Image, "snapshot")
	mustClose(t, mustOpen(t, cfg))
	c.RBD(t, "mirror", "image", "demote", cfg.Image)
	testutil.Fails(t, testutil.Err(Open(cfg)), "rbd mirror image promote "+cfg.Image, "a copy")
	reader.Image = cfg.Image
	mustClose(t, mustOpen(t, reader))
}

// poolGone: an image in a deleted pool is offline, and its connection serves others.
func poolGone(t *testing.T, c *cephtest.Cluster) {
	c.Ceph(t, "osd", "pool", "create", "gone", "8")
	c.RBD(t, "create", "--size", "8M", "--image-feature", "layering", "gone/image")
	var log testutil.Log
	cfg := admin(c, "gone/image")
	cfg.Log = log.Logger()
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	other := mustOpen(t, admin(c, c.Image(t, "8M", "layering")))
	defer mustClose(t, other)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	testutil.Must(t, write(client, 0, client.Memory(0, block)))
	c.Ceph(t, "osd", "pool", "delete", "gone", "gone", "--yes-i-really-really-mean-it")
	var err error
	testutil.Until(t, "a write fails", func() bool {
		err = write(client, 0, client.Memory(0, block))
		return err != nil
	})
	testutil.Is(t, err, backend.ErrOffline, "write to a deleted pool")
	testutil.Until(t, "the log has the reason", func() bool {
		return strings.Contains(log.String(), "refuses operations on its pool") &&
			strings.Contains(log.String(), "cannot be opened again") &&
			strings.Contains(log.String(), "does not exist")
	})
	testutil.True(t, dev.Info().Offline && !other.(*device).image.Load().cluster.Retired(),
		"%+v", dev.Info())
}

// examine: doctor sees rights that are missing, and fences.
func examine(t *testing.T, c *cephtest.Cluster) {
	for name, mon := range map[string]string{"reader": "allow r", "rbd": "profile rbd"} {
		c.Ceph(t, "auth", "get-or-create", "client."+name, "mon", mon, "osd", "profile rbd", "-o",
			c.Path("client."+name+".keyring"))
	}
	c.Ceph(t, "osd", "blocklist", "add", "127.0.0.1:0/4242", "60")
	c.Ceph(t, "osd", "blocklist", "add", "127.0.0.2:0/4242", "60")
	got := testutil.Value(Examine(rados.Access{Conf: c.Conf(), User: "rbd"}))(t)
	testutil.Check(t, got.Fences)
	list := strings.Join(got.Fenced, "\n")
	testutil.True(t, strings.Contains(list, "127.0.0.1:0/4242 until 2") &&
		!strings.Contains(list, "127.0.0.2") && strings.HasPrefix(got.Library, "1."), "%+v", got)
	testutil.True(t, !strings.Contains(c.Ceph(t, "osd", "blocklist", "ls"), "invalid"),
		"the examination has fenced")
	got = testutil.Value(Examine(rados.Access{Conf: c.Conf(), User: "reader"}))(t)
	testutil.Fails(t, got.Fences, "ceph auth caps client.reader mon 'profile rbd'", "")
}

// watcher returns the address of the only connection that has an image open.
func watcher(t *testing.T, c *cephtest.Cluster, image string) string {
	t.Helper()
	var status struct {
		Watchers []struct{ Address string }
	}
	testutil.Must(t, json.Unmarshal([]byte(c.RBD(t, "status", "--format", "json", image)), &status))
	testutil.MustEqual(t, len(status.Watchers), 1, "watchers")
	return status.Watchers[0].Address
}

// silent: an image of a cluster that does not answer holds one thread, however often it is opened,
// and a device is closed for its user. It is not used afterwards.
func silent(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering,exclusive-lock,object-map,fast-diff"))
	cfg.Ceph.Keyring = c.Path("client.admin.keyring") // so others have another connection
	dev := mustOpen(t, cfg)
	restore := func(a, b time.Duration) func() {
		return func() { patience, closePatience = a, b }
	}(patience, closePatience)
	defer restore()
	patience, closePatience = 10*time.Millisecond, 10*time.Millisecond
	stacks := func(in string) int {
		var b [1 << 20]byte
		return strings.Count(string(b[:runtime.Stack(b[:], true)]), in)
	}
	c.Pause(t, "osd")
	for range 3 {
		testutil.Is(t, testutil.Err(Open(cfg)), backend.ErrOffline, "")
		clear(late.last)
	}
	testutil.Equal(t, stacks("rbd.(*Config).open("), 1, "goroutines that open the image")
	testutil.Check(t, dev.Close())
	c.Continue(t, "osd")
	_, _, err := dev.(backend.SpaceReporter).Space()
	testutil.Is(t, err, backend.ErrOffline, "space of a closed device")
	restore()
	testutil.Until(t, "the image can be opened again", func() bool {
		dev, err = Open(cfg)
		return err == nil
	})
	mustClose(t, dev)
	testutil.Until(t, "both are closed", func() bool { return stacks("(*device).Close") == 0 })
}

// full: writes that need space fail while the cluster is full, and succeed again afterwards.
func full(t *testing.T, c *cephtest.Cluster) {
	dev := mustOpen(t, admin(c, c.Image(t, "64M", "layering")))
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	gated := admin(c, c.Image(t, "8M", "layering"))
	gated.Gate = &Gate{}
	defer mustClose(t, mustOpen(t, gated))
	cluster := testutil.Value(rados.Connect(gated.Ceph))(t)
	defer cluster.Close()
	c.FullAt(t, "0.0001")
	var err error
	off := int64(0)
	testutil.Until(t, "a write fails", func() bool {
		err = write(client, off%(64<<20), client.Memory(0, 4096))
		off += 4096
		return err != nil
	})
	testutil.Is(t, err, backend.ErrNoSpace, "")
	testutil.Check(t, gated.Gate.Open(&Holder{Cluster: cluster, Group: "a", Instance: "b"}))
	gated.Gate.Close()
	c.FullAt(t, "0.95")
	testutil.Until(t, "a write succeeds", func() bool {
		return write(client, off%(64<<20), client.Memory(0, 4096)) == nil
	})
}

// snapshot: a snapshot is served, and does not change.
func snapshot(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	c.RBD(t, "snap", "create", cfg.Image+"@then")
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	data := bytes.Repeat([]byte{1}, block)
	copy(client.Memory(0, block), data)
	testutil.Must(t, write(client, 0, client.Memory(0, block)))

	cfg.Image += "@then"
	cfg.ReadOnly = true
	then := mustOpen(t, cfg)
	defer mustClose(t, then)
	testutil.True(t, then.Info().ReadOnly && then.Info().Identity != dev.Info().Identity,
		"%+v", then.Info())
	reader := backendtest.NewClient(t, then, 1<<20)
	defer reader.Close()
	got := reader.Memory(0, block)
	testutil.Must(t, one(reader, reader.Read(0, got)))
	testutil.True(t, bytes.Equal(got, make([]byte, block)), "the snapshot has changed")
	testutil.Is(t, write(reader, 0, got), backend.ErrReadOnly, "")
}

// encrypted: hosts see the container of an encrypted image, and no plain data.
func encrypted(t *testing.T, c *cephtest.Cluster) {
	testutil.Soak(t, "rbd encryption format computes for seconds")
	cfg := admin(c, c.Image(t, "32M", "layering"))
	phrase := c.Path("passphrase")
	testutil.Must(t, os.WriteFile(phrase, []byte("secret"), 0o600))
	c.RBD(t, "encryption", "format", cfg.Image, "luks2", phrase)
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	got := client.Memory(0, block)
	testutil.Must(t, one(client, client.Read(0, got)))
	testutil.True(t, bytes.HasPrefix(got, []byte("LUKS\xba\xbe\x00\x02")), "%q", got[:16])
}

// space: an image with fast-diff knows the space of its objects.
func space(t *testing.T, c *cephtest.Cluster) {
	dev := mustOpen(t, admin(c, c.Image(t, "64M", "layering,exclusive-lock,object-map,fast-diff")))
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	for n := range int64(3) {
		used, free, err := dev.(backend.SpaceReporter).Space()
		testutil.True(t, used == n<<22 && free == -1 && err == nil, "%d objects: %d, %d, %v", n,
			used, free, err)
		testutil.Must(t, write(client, n<<22, client.Memory(0, block)))
	}
	poor := mustOpen(t, admin(c, c.Image(t, "8M", "layering")))
	defer mustClose(t, poor)
	_, _, err := poor.(backend.SpaceReporter).Space()
	testutil.Is(t, err, backend.ErrUnsupported, "without fast-diff")
}

// longRanges: discards and zeroes longer than one operation of librbd.
func longRanges(t *testing.T, c *cephtest.Cluster) {
	const size = discardPiece + 2*zeroPiece
	dev := mustOpen(t, admin(c, c.Image(t, "288M", "layering")))
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	places := []int64{0, zeroPiece - block, zeroPiece, size - block}
	for _, op := range []backend.IO{
		{Op: backend.OpDiscard, Len: size},
		{Op: backend.OpWriteZeroes, Flags: backend.Unmap, Len: size},
		{Op: backend.OpWriteZeroes, Off: zeroPiece - block, Len: zeroPiece + 2*block},
	} {
		for _, off := range places {
			b := client.Memory(0, block)
			copy(b, bytes.Repeat([]byte{1}, block))
			testutil.Must(t, write(client, off, b))
		}
		testutil.Must(t, one(client, &op))
		for _, off := range places {
			b := client.Memory(0, block)
			testutil.Must(t, one(client, client.Read(off, b)))
			in := off >= op.Off && off < op.Off+op.Len
			testutil.True(t, (b[0] == 0) == in || op.Op == backend.OpDiscard && off != 0,
				"%v of %d at %d: %d at %d", op.Op, op.Len, op.Off, b[0], off)
		}
	}
}

// steps: a step starts some operations, and the reactor does not sleep before the next one. Then it
// may, since the submitter can keep the others.
func steps(t *testing.T, c *cephtest.Cluster) {
	dev := mustOpen(t, admin(c, c.Image(t, "8M", "layering")))
	defer mustClose(t, dev)
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	var ios []*backend.IO
	for i := range 2 * stepMost {
		ios = append(ios, client.Read(int64(i*block), client.Memory(i*block, block)))
	}
	ch, ended, done := client.Channel, 0, make([]*backend.IO, len(ios))
	n := ch.Submit(ios)
	testutil.True(t, n == stepMost && !ch.Arm(), "%d have started, or it may sleep", n)
	testutil.Until(t, "they end", func() bool {
		ended += ch.Poll(done)
		return ended == n
	})
	testutil.True(t, ch.Arm(), "the reactor never sleeps")
}

// caches: an image for which librbd would have a cache is refused.
func caches(t *testing.T, c *cephtest.Cluster) {
	c.RBD(t, "namespace", "create", cephtest.Pool+"/caches")
	cfg := admin(c, cephtest.Pool+"/caches/a")
	c.RBD(t, "create", "--size", "8M", cfg.Image)
	for _, at := range [][]string{{"image", cfg.Image}, {"pool", cephtest.Pool}} {
		c.RBD(t, "config", at[0], "set", at[1], "rbd_cache", "true")
		testutil.Fails(t, testutil.Err(Open(cfg)), "rbd config "+at[0]+" rm "+at[1]+" rbd_cache",
			"%s", at[0])
		c.RBD(t, "config", at[0], "set", at[1], "rbd_cache", "false")
		mustClose(t, mustOpen(t, cfg))
		c.RBD(t, "config", at[0], "rm", at[1], "rbd_cache")
	}
}

// layout: no unit that is said to be whole is in two objects.
func layout(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, cephtest.Pool+"/striped")
	c.RBD(t, "create", "--size", "8M", "--object-size", "8K", "--stripe-unit", "1K",
		"--stripe-count", "4", cfg.Image)
	dev := mustOpen(t, cfg)
	testutil.Equal(t, dev.Info().PhysicalBlockSize, 1024, "physical block size")
	mustClose(t, dev)
	cfg.BlockSize = 2048
	testutil.Fails(t, testutil.Err(Open(cfg)), "stripes of 1024 bytes", "")
}

// partOfBlock: the rest of an image that is not a whole block takes no writes.
func partOfBlock(t *testing.T, c *cephtest.Cluster) {
	cfg := admin(c, c.Image(t, "8M", "layering"))
	dev := mustOpen(t, cfg)
	defer mustClose(t, dev)
	notified := make(chan int64, 10)
	dev.(backend.Changer).Notify(func() { notified <- dev.Info().Size })
	c.RBD(t, "resize", "--size", "4194404B", "--allow-shrink", cfg.Image)
	testutil.Equal(t, testutil.Receive(t, "the smaller size", notified), 4<<20, "size")
	client := backendtest.NewClient(t, dev, 1<<20)
	defer client.Close()
	testutil.Is(t, write(client, 4<<20, client.Memory(0, block)), backend.ErrOutOfRange, "")
}

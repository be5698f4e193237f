//go:build cgo

package rados

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/rados"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// childConf is the environment variable that makes the test program the gateway of a child
// process: the path of ceph.conf.
const childConf = "NVMF_TEST_GROUP_CHILD"

func TestMain(m *testing.M) {
	if conf := os.Getenv(childConf); conf != "" {
		child(conf)
		return
	}
	// More than there are processors, since they mostly wait for the cluster and for leases.
	_ = flag.Set("test.parallel", "16")
	testutil.Main(m)
}

func TestGroup(t *testing.T) {
	c := cephtest.New(t)
	for name, test := range map[string]func(*testing.T, *cephtest.Cluster){
		"State": state, "Lease": lease, "Fence": fence, "Move": move, "Stopped": stopped,
		"ByHand": byHand, "Large": large, "Full": full, "Changes": changes, "Present": present,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "Full" { // which concerns the whole cluster
				t.Parallel()
			}
			test(t, c)
		})
	}
}

func config(conf string, id uint32) Config {
	return Config{
		Access: rados.Access{
			Conf: conf, User: "gateway",
			Keyring: strings.TrimSuffix(conf, "ceph.conf") + "client.gateway.keyring",
		},
		Pool: cephtest.Pool, Group: id, Shared: Configuration,
	}
}

func connect(t *testing.T, c *cephtest.Cluster, id uint32) *Engine {
	t.Helper()
	e := testutil.Value(Connect(config(c.Conf(), id)))(t)
	t.Cleanup(e.Close)
	return e
}

// state: the record has versions, and changes of it are noticed by others.
func state(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	a, b := connect(t, c, 1), connect(t, c, 1)
	data, version, err := a.Get(ctx)
	testutil.Must(t, err)
	testutil.True(t, len(data) == 0 && version == 0, "%q at version %d before the first Put", data,
		version)
	first := testutil.Value(a.Put(ctx, []byte("first"), 0))(t)
	testutil.Is(t, testutil.Err(b.Put(ctx, []byte("also first"), 0)), group.ErrConflict, "")

	changed := make(chan struct{}, 100)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() {
		testutil.Is(t, b.Watch(watching, func() { changed <- struct{}{} }), context.Canceled, "")
	})
	second := first
	testutil.Until(t, "a notification comes", func() bool {
		next, err := a.Put(ctx, []byte("second"), second)
		testutil.Must(t, err)
		second = next
		return len(changed) > 0
	})
	testutil.Until(t, "a notification of an ended lease comes", func() bool {
		testutil.Must(t, a.Acquire(ctx, time.Minute))
		a.background.Wait()
		for len(changed) > 0 { // of before
			<-changed
		}
		testutil.Must(t, a.Release(ctx))
		a.background.Wait()
		return len(changed) > 0
	})
	testutil.Is(t, testutil.Err(b.Put(ctx, []byte("third"), first)), group.ErrConflict, "")
	// Renewals do not change the version.
	testutil.Must(t, b.Acquire(ctx, time.Minute))
	testutil.Must(t, b.Renew(ctx, time.Minute))
	data, version, err = b.Get(ctx)
	testutil.Must(t, err)
	testutil.True(t, string(data) == "second" && version == second, "%q at version %d, not %d",
		data, version, second)
}

// lease: one instance has the lease until it is released, broken or over.
func lease(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	a, b := connect(t, c, 2), connect(t, c, 2)
	id, _ := a.Instance()
	lessee := func(want string) {
		t.Helper()
		testutil.Equal(t, testutil.Value(b.Lessee(ctx))(t), want, "the lessee")
	}
	lessee("")
	testutil.Is(t, a.Renew(ctx, time.Minute), group.ErrLost, "")
	testutil.Must(t, a.Release(ctx))
	testutil.Must(t, b.Break(ctx, id))
	testutil.Must(t, a.Acquire(ctx, time.Minute))
	testutil.Must(t, a.Acquire(ctx, time.Minute))
	testutil.Must(t, a.Renew(ctx, time.Minute))
	lessee(id)
	testutil.Is(t, b.Acquire(ctx, time.Minute), group.ErrHeld, "")
	testutil.Is(t, b.Renew(ctx, time.Minute), group.ErrLost, "")
	testutil.Must(t, b.Break(ctx, "another"))
	lessee(id)
	testutil.Must(t, b.Break(ctx, id))
	lessee("")
	testutil.Is(t, a.Renew(ctx, time.Minute), group.ErrLost, "after it was broken")
	testutil.Must(t, a.Acquire(ctx, time.Second))
	testutil.Until(t, "the lease is over", func() bool {
		return b.Acquire(ctx, time.Minute) == nil
	})
	testutil.Is(t, a.Renew(ctx, time.Minute), group.ErrLost, "after it was over")
	testutil.Must(t, b.Release(ctx))
	lessee("")
}

// fence: the end of a fence is that of the first one that exists, and cannot be moved. So this
// package asks for a long one, and sees if one is short.
func fence(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	a, b := connect(t, c, 3), connect(t, c, 3)
	_, addrs := b.Instance()
	const long = 10 * 365 * 24 * time.Hour
	for range 2 {
		testutil.Equal(t, testutil.Value(a.Fence(ctx, addrs, long))(t), long, "the rest")
	}
	// The OSD carries out these operations after it has heard of the fence, for each object.
	_, version, err := a.Get(ctx)
	testutil.Must(t, err)
	testutil.Value(a.Lessee(ctx))(t)
	testutil.Is(t, testutil.Err(b.Put(ctx, []byte("late"), 0)), group.ErrFenced, "")
	testutil.Is(t, b.Acquire(ctx, time.Minute), group.ErrFenced, "")
	_, _, err = b.Get(ctx)
	testutil.Is(t, err, group.ErrFenced, "")
	testutil.Must(t, testutil.Err(a.Put(ctx, []byte("of another"), version)))

	const stranger = "127.0.0.1:0/4242"
	c.Ceph(t, "osd", "blocklist", "add", stranger, "1800")
	before := testutil.Value(a.cluster.Blocklist(ctx))(t)[stranger]
	c.Ceph(t, "osd", "blocklist", "add", stranger, "7200")
	testutil.Equal(t, testutil.Value(a.cluster.Blocklist(ctx))(t)[stranger], before,
		"the end of an entry that was added again")
	left := testutil.Value(a.Fence(ctx, append(addrs, stranger), long))(t)
	testutil.Equal(t, left, min(left, 30*time.Minute), "the rest of a short fence")
	const own = "127.0.0.1:0/4243"
	c.Ceph(t, "osd", "blocklist", "add", own, "2592000") // a connection that fences itself
	left = testutil.Value(a.Fence(ctx, []string{own}, long))(t)
	testutil.Equal(t, int(left.Hours())/24, 29, "whole days for which a fence of 30 days counts")
	testutil.Equal(t, testutil.Value(a.cluster.Blocklist(ctx))(t)[stranger], before,
		"the end of a short fence")
}

// present: an instance that runs answers at once. If its process is stopped or killed, it does not,
// although its watch lasts.
func present(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	cmd, lines := run(t, c, "9", "3600")
	want(t, lines, "child optimized")
	e := connect(t, c, 9)
	id, _ := e.Instance()
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() { testutil.Is(t, e.Watch(watching, func() {}), context.Canceled, "") })
	data, version, err := e.Get(ctx)
	testutil.Must(t, err)
	r := testutil.Value(group.ParseRecord(data, version))(t)
	are := func(when string, want ...string) {
		t.Helper()
		testutil.Until(t, when, func() bool { // the answers come in time
			list, err := e.Present(ctx)
			slices.Sort(list)
			return err == nil && slices.Equal(list, slices.Sorted(slices.Values(want)))
		})
	}
	are("both run", id, r.Holder.ID)
	testutil.Pause(t, cmd.Process)
	are("the child is stopped", id)
	testutil.Must(t, cmd.Process.Signal(syscall.SIGCONT))
	are("it runs again", id, r.Holder.ID)
	testutil.Must(t, cmd.Process.Kill())
	are("it is killed", id)
	other := connect(t, c, 9) // which does not watch
	list := testutil.Value(other.Present(ctx))(t)
	testutil.True(t, list == nil, "what it knows: %v", list)
}

// large: a gateway leaves a record that is too large alone, says so, and takes the group when
// the record has been repaired.
func large(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	e, access := connect(t, c, 5), make(chan string, 100)
	version := testutil.Value(e.Put(ctx, bytes.Repeat([]byte{' '}, 10<<20), 0))(t)
	g := start(c.Conf(), "a", 5, time.Minute, access)
	testutil.Until(t, "the gateway sees the record", func() bool {
		s := g.Status()
		return strings.Contains(s.Problem, "bytes, more than 1048576") && s.Phase == "standby"
	})
	empty := testutil.Value(testutil.Value(group.ParseRecord(nil, 0))(t).Bytes())(t)
	testutil.Must(t, testutil.Err(e.Put(ctx, empty, version)))
	want(t, access, "a optimized")
	g.Stop(testutil.Context(t))
}

// full: a cluster that is full takes the records and leases of groups, also of new ones, or no
// gateway could take a group over.
func full(t *testing.T, c *cephtest.Cluster) {
	ctx := testutil.Context(t)
	e := connect(t, c, 8)
	testutil.Must(t, e.Acquire(ctx, time.Hour)) // programs of Ceph may take long
	record := bytes.Repeat([]byte{' '}, group.MaxRecord/2)
	version := testutil.Value(e.Put(ctx, record, 0))(t)
	fullAt := func(ratio string, want bool) {
		c.FullAt(t, ratio)
		testutil.Until(t, "the cluster is full, or is not", func() bool {
			return strings.Contains(c.Ceph(t, "osd", "dump"), ",full ") == want
		})
	}
	defer fullAt("0.95", false)
	fullAt("0.0001", true)
	testutil.Must(t, e.cluster.WaitForLatestMap(ctx)) // then the OSD has it as well
	first := connect(t, c, 10)                        // of a group without a lease
	testutil.Check(t, first.Acquire(ctx, time.Hour))
	testutil.Check(t, first.Acquire(ctx, time.Hour))
	testutil.Check(t, testutil.Err(e.Put(ctx, append(record, ' '), version)))
	testutil.Check(t, e.Renew(ctx, time.Hour))
	testutil.Check(t, e.Release(ctx))
}

// images records the access to a group.
type images struct {
	name   string
	access chan string
}

func (i *images) Open(context.Context, group.Engine) error { return nil }
func (i *images) Close()                                   {}
func (i *images) Access(a group.Access) {
	i.access <- i.name + []string{" inaccessible", " change", " optimized"}[a]
}

// start runs a gateway until its end is called. Only one that is stopped has a short lease, since a
// busy machine may end that.
func start(conf, name string, id uint32, lease time.Duration, access chan string) *group.Group {
	cfg := group.Default(name, name, lease)
	cfg.Prefers, cfg.Retry, cfg.Reconnect = name != "b", time.Second, time.Second
	cfg.Poll = 200 * time.Millisecond
	return group.Start(cfg, func() (group.Engine, error) {
		return Connect(config(conf, id))
	}, &images{name, access}, slog.New(slog.DiscardHandler))
}

// want waits for these changes of the access.
func want(t *testing.T, access chan string, changes ...string) {
	t.Helper()
	for _, c := range changes {
		testutil.Equal(t, testutil.Receive(t, c, access), c, "change of the access")
	}
}

// move: a group moves by drain, without a fence.
func move(t *testing.T, c *cephtest.Cluster) {
	access := make(chan string, 100)
	a := start(c.Conf(), "a", 4, time.Minute, access)
	want(t, access, "a optimized")
	b := start(c.Conf(), "b", 4, time.Minute, access)
	var s group.Status
	testutil.Until(t, "b sees the holder, and takes part", func() bool {
		s = b.Status()
		return s.Holder == "a" && len(s.Instances) == 2
	})
	a.Drain(true)
	want(t, access, "a change", "a inaccessible", "b optimized")
	a.Drain(false)
	b.Drain(true)
	want(t, access, "b change", "b inaccessible", "a optimized")
	b.Stop(testutil.Context(t))
	list := c.Ceph(t, "osd", "blocklist", "ls")
	for _, in := range s.Instances {
		testutil.True(t, !strings.Contains(list, in.Addrs[0]+" "), "%+v is in %s", in, list)
	}
	a.Stop(testutil.Context(t))
	want(t, access, "a change", "a inaccessible")
}

// child is a gateway that prints the changes of its access. Its arguments are the group and the
// lease in seconds.
func child(conf string) {
	access := make(chan string)
	var id, lease int
	_, _ = fmt.Sscan(os.Args[1]+" "+os.Args[2], &id, &lease)
	start(conf, "child", uint32(id), time.Duration(lease)*time.Second, access)
	for change := range access {
		fmt.Println(change)
	}
}

// run starts a child, and returns the lines that it prints.
func run(t *testing.T, c *cephtest.Cluster, id, lease string) (*exec.Cmd, chan string) {
	cmd := exec.Command(os.Args[0], id, lease)
	cmd.Env = append(os.Environ(), childConf+"="+c.Conf())
	cmd.Stderr = os.Stderr
	out, in := io.Pipe()
	cmd.Stdout = in
	ended := testutil.Value(testutil.StartChild(cmd))(t)
	lines := make(chan string, 100)
	go func() {
		<-ended
		_ = in.Close()
	}()
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range lines {
		}
	})
	return cmd, lines
}

// byHand: a process that is stopped is fenced, and its group taken, long before its lease is over.
func byHand(t *testing.T, c *cephtest.Cluster) {
	cmd, lines := run(t, c, "6", "3600")
	want(t, lines, "child optimized")
	access := make(chan string, 100)
	g := start(c.Conf(), "b", 6, time.Minute, access)
	defer func() { g.Stop(testutil.Context(t)) }()
	testutil.Until(t, "b sees the holder", func() bool { return g.Status().Holder == "child" })
	testutil.Pause(t, cmd.Process)
	testutil.Must(t, g.Fence(testutil.Context(t), "child"))
	want(t, access, "b optimized")
	list := c.Ceph(t, "osd", "blocklist", "ls")
	testutil.True(t, strings.Contains(list, g.Status().Fenced[0].Addrs[0]), "no fence in %s", list)
	testutil.Must(t, cmd.Process.Signal(syscall.SIGCONT))
	want(t, lines, "child inaccessible")
}

// stopped: the group of a process that is stopped is taken over with a fence, and when it goes on,
// it notices that, and can take the group again. While it waits and is stopped, it is no heir.
func stopped(t *testing.T, c *cephtest.Cluster) {
	cmd, lines := run(t, c, "7", "4")
	want(t, lines, "child optimized")
	access := make(chan string, 100)
	g := start(c.Conf(), "b", 7, time.Minute, access)
	testutil.Pause(t, cmd.Process)
	want(t, access, "b optimized")
	fenced := g.Status().Fenced
	testutil.MustEqual(t, len(fenced), 1, "fenced instances")
	list := c.Ceph(t, "osd", "blocklist", "ls")
	testutil.True(t, strings.Contains(list, fenced[0].Addrs[0]), "no fence of %+v in %s", fenced[0],
		list)
	testutil.Must(t, cmd.Process.Signal(syscall.SIGCONT))
	want(t, lines, "child inaccessible")
	testutil.Until(t, "the child is another instance", func() bool {
		return len(g.Status().Fenced) == 0
	})
	heir := func(want bool) {
		testutil.Until(t, fmt.Sprint("another one could take the group: ", want), func() bool {
			has, err := g.HasHeir(testutil.Context(t))
			return err == nil && has == want
		})
	}
	heir(true)
	testutil.Pause(t, cmd.Process)
	heir(false)
	testutil.Must(t, cmd.Process.Signal(syscall.SIGCONT))
	g.Drain(true)
	want(t, access, "b change", "b inaccessible")
	want(t, lines, "child optimized")
	g.Stop(testutil.Context(t))
}

// changes: of 200 changes of the configuration through three gateways at once none is lost, and all
// gateways have the same one.
func changes(t *testing.T, c *cephtest.Cluster) {
	const gateways, each = 3, 67
	type member struct {
		*group.Shared
		text atomic.Pointer[string] // in force
	}
	var all [gateways]member
	ctx := t.Context() // on a busy machine they take more than a minute
	for i := range all {
		m := &all[i]
		m.Shared = group.Share(fmt.Sprint(i), func() (group.Engine, error) {
			return Connect(config(c.Conf(), 0))
		}, "", func(v *group.Version) error {
			m.text.Store(&v.Text)
			return nil
		}, slog.New(slog.DiscardHandler))
		t.Cleanup(func() { m.Stop(testutil.Context(t)) })
	}
	testutil.Until(t, "the first version is stored", func() bool {
		_, err := all[0].Put(ctx, ".", 0, 0)
		return err == nil
	})
	mark := func(i, n int) string { return string(rune('\u0100' + i*each + n)) }
	change := func(m *member, mark string) {
		for {
			list, err := m.Versions(ctx)
			if err == nil && strings.Contains(list[0].Text, mark) {
				return
			}
			if err == nil { // else it is repeated
				_, _ = m.Put(ctx, list[0].Text+mark, list[0].Number, 0)
			}
		}
	}
	var writers sync.WaitGroup
	for i := range all {
		writers.Go(func() {
			for n := range each {
				change(&all[i], mark(i, n))
			}
		})
	}
	writers.Wait()
	list := testutil.Value(all[0].Versions(ctx))(t)
	for i := range all {
		for n := range each {
			testutil.Equal(t, strings.Count(list[0].Text, mark(i, n)), 1, "changes %q", mark(i, n))
		}
		testutil.Until(t, "all have the last version", func() bool {
			applied, _ := all[i].State()
			text := all[i].text.Load()
			return applied == list[0].Number && text != nil && *text == list[0].Text
		})
	}
}

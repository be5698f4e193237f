package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const inRAM2 = "{nsid: 2, backend: ram, size: 1MiB}"

// TestResize: hosts get an event and see the new size and the old content. Nothing is cut off
// unless requested.
func TestResize(t *testing.T) {
	sparse := "{nsid: 2, backend: delay, latency: 1us, of: {backend: file, path: %DIR%/y, " +
		"size: 32KiB}}"
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	l.file("x")
	l.file("y")
	l.apply(listenAny, sub(anyHosts, inRAM, sparse,
		"{nsid: 3, backend: file, path: %DIR%/none}", "{nsid: 4, backend: \"null\", size: 1MiB}",
		"{nsid: 5, backend: file, path: %DIR%/x, read_only: true}"))
	ctx := testutil.Context(t)
	o := hostOptions(testNQN)
	c := testutil.Value(host.Connect(ctx, host.TCP{Addr: l.s.Addrs()[0].AddrPort}, o))(t)
	defer c.Close()
	events := testutil.Value(hosttest.Events(ctx, c, nvme.EventNamespaceChanged))(t)
	resized := func(size string, shrink bool, want uint64) {
		t.Helper()
		r := control.Resize{Subsystem: testNQN, NSID: 2, Size: size, Shrink: shrink}
		testutil.Must(t, l.s.engine.Resize(r))
		<-events
		_, err := hosttest.GetLog(ctx, c, nvme.LogChangedNamespaces, nvme.NSIDAll, 0, 4096, 0,
			false)
		testutil.Check(t, err)
		id, err := c.IdentifyNamespace(ctx, 2)
		info, statErr := os.Stat(filepath.Join(l.dir, "y"))
		if err := errors.Join(err, statErr); err != nil || id.NSZE != want/512 ||
			info.Size() != int64(want) {
			t.Errorf("%v, %d blocks, %d bytes; want %d", err, id.NSZE, info.Size(), want)
		}
		testutil.Equal(t, l.first(c, 2), "y", "the content")
	}
	resized("1MiB", false, 1<<20)
	resized("65536", true, 64<<10)

	for _, tc := range []struct {
		nsid   uint32
		size   string
		shrink bool
		want   string
	}{
		{1, "2MiB", false, "memory"},
		{2, "32KiB", false, "--shrink"},
		{2, "1000", true, "reduce"},
		{2, "32769", true, "multiple"},
		{2, "much", false, "not a size"},
		{2, "4EiB", false, "not a size"},
		{2, "4000000TiB", false, "file too large"},
		{3, "1MiB", false, "pending"},
		{4, "2MiB", false, "reload"},
		{5, "1MiB", false, "read_only"},
		{6, "1MiB", false, "removed"},
	} {
		err := l.s.engine.Resize(control.Resize{
			Subsystem: testNQN, NSID: tc.nsid, Size: tc.size, Shrink: tc.shrink,
		})
		testutil.True(t, err != nil && strings.Contains(strings.ToLower(err.Error()), tc.want),
			"namespace %d to %s: %v, want %q", tc.nsid, tc.size, err, tc.want)
	}
	testutil.Equal(t, l.first(c, 2), "y", "after a failure the content")
	l.apply(listenAny, sub(anyHosts, sparse)) // it is served like others
}

// TestGrowingReload: a larger size in the configuration makes the file larger when it is applied. A
// smaller one changes nothing, and neither does a refused configuration.
func TestGrowingReload(t *testing.T) {
	file := func(size string) string {
		return "{nsid: 1, backend: delay, latency: 1us, of: {backend: file, path: %DIR%/x, size: " +
			size + "}}"
	}
	l := newLive(t, listenAny, sub(anyHosts, inRAM2))
	l.file("x")
	l.apply(listenAny, sub(anyHosts, inRAM2, file("64KiB")))
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	want := func(size uint64) {
		t.Helper()
		id, err := c.IdentifyNamespace(t.Context(), 1)
		if err != nil || id.NSZE != size/512 {
			t.Errorf("%v, %d blocks, want %d", err, id.NSZE, size/512)
		}
		testutil.Equal(t, l.first(c, 1), "x", "the content")
	}
	l.apply(listenAny, sub(anyHosts, inRAM2, file("1MiB")))
	want(1 << 20)
	l.apply(listenAny, sub(anyHosts, inRAM2, file("32KiB")))
	want(1 << 20)
	missing := "{nsid: 3, backend: file, path: /proc/none, size: 1MiB}"
	if _, err := l.s.Apply(l.parse(listenAny,
		sub(anyHosts, inRAM2, file("2MiB"), missing))); err == nil {
		t.Error("no error")
	}
	want(1 << 20)
	metrics := fmt.Sprintf("metrics: {listen: %q}", listen(t, "127.0.0.1:0").AddrPort())
	if _, err := l.s.Apply(l.parse(listenAny, sub(anyHosts, inRAM2, file("3MiB"))+
		metrics)); err == nil || !strings.Contains(err.Error(), "cannot be undone: its file has "+
		"3145728 bytes now") {
		t.Errorf("a change that fails after it has grown: %v", err)
	}
	want(3 << 20)
	l.apply(listenAny, sub(anyHosts, inRAM2, file("4MiB")))
	want(4 << 20)
}

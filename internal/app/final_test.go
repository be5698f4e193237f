package app

import (
	"os"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAddedInVain: a subsystem that a failed reload has added and removed is not gone for good,
// because the file has it. Nor is one that was removed before.
func TestAddedInVain(t *testing.T) {
	one := sub(anyHosts, inRAM)
	both := one + strings.Replace(one, testNQN, testNQN+"-more", 1)
	l := newLive(t, listenAny, one)
	want := func(final bool) {
		t.Helper()
		_, err := l.connect(testNQN+"-more", hostA, 0)
		testutil.True(t, err != nil && strings.Contains(err.Error(), "DNR") == final,
			"final: %t, refused with %v", final, err)
	}
	want(false)
	_ = l.refuse(failing(t), both)
	want(false)
	l.apply(listenAny, both)
	l.apply(listenAny, one)
	want(true)
	_ = l.refuse(failing(t), both)
	want(false)
}

// TestRemovedForGood: after a reload that removes a subsystem hosts are told that it is gone for
// good, but not after one that fails, or when it is back.
func TestRemovedForGood(t *testing.T) {
	const stays = `
  - nqn: ` + testNQN + `-stays
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors:`
	with := strings.Replace(validFile, "reactors:", stays[1:], 1)
	begin := strings.Index(with, "  - nqn: "+testNQN+"\n")
	without := with[:begin] + with[strings.Index(with, "  - nqn: "+testNQN+"-stays"):]
	file := writeConfig(t, with)
	s := started(t, Options{Load: loader(file)})
	ctx := testutil.Context(t)
	connect := func() string {
		c, err := host.Connect(ctx, host.TCP{Addr: s.Addrs()[0].AddrPort}, hostOptions(testNQN))
		if err != nil {
			return err.Error()
		}
		c.Close()
		return ""
	}
	reload := func(text string, works bool) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := s.Reload()
		testutil.MustTrue(t, (err == nil) == works, "%v", err)
	}
	reload(strings.Replace(without, "size: 16MiB", "size: 1", 1), false)
	testutil.Equal(t, connect(), "", "after a reload that has failed")
	reload(without, true)
	why := connect()
	testutil.True(t, strings.Contains(why, "DNR"), "removed: %q", why)
	done := s.target.Changing() // as during a change
	if why := connect(); why == "" || strings.Contains(why, "DNR") {
		t.Errorf("while a configuration is applied: %q", why)
	}
	done()
	reload(with, true)
	testutil.Equal(t, connect(), "", "back")
}

package app

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestRemovedForGood: after a reload that removes a subsystem hosts are told that it is gone for
// good, and not after one that fails, or when it is back.
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
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
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
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reload(); (err == nil) != works {
			t.Fatal(err)
		}
	}
	reload(strings.Replace(without, "size: 16MiB", "size: 1", 1), false)
	if why := connect(); why != "" {
		t.Errorf("after a reload that has failed: %s", why)
	}
	reload(without, true)
	if why := connect(); !strings.Contains(why, "DNR") {
		t.Errorf("removed: %q", why)
	}
	done := s.target.Changing() // as while something is applied
	if why := connect(); why == "" || strings.Contains(why, "DNR") {
		t.Errorf("while a configuration is applied: %q", why)
	}
	done()
	reload(with, true)
	if why := connect(); why != "" {
		t.Errorf("back: %s", why)
	}
}

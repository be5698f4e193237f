package app

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestWatchedChanges: clients, scrapers and the service manager get answers in the middle of
// changes.
func TestWatchedChanges(t *testing.T) {
	t.Parallel()
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	l.file("x")
	l.file("y")
	metrics := fmt.Sprintf("%s]\nmetrics: {listen: '127.0.0.1:%d'}\n#", listenAny,
		testutil.FreePort(t))
	waiting := listenAny + ", {transport: tcp, address: 192.0.2.1, port: 4420}"
	configs := [][2]string{
		{listenAny, sub(anyHosts, inRAM, onFile(2, "x"), strings.Replace(inMount, "2", "4", 1))},
		{metrics, sub("hosts: ["+hostA+"]", inRAM, onFile(2, "y"))},
		{waiting, sub(anyHosts, inRAM, onFile(3, "x"), onFile(2, "z"))},
		{waiting, sub(anyHosts, onFile(1, "y"))},
	}
	var end atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end.Store(true)
	for _, ask := range []func() string{
		func() string { return fmt.Sprint(l.s.listeners.States()) },
		func() string { return fmt.Sprint(l.s.namespaceStates(), l.s.subsystemStates()) },
		func() string { return fmt.Sprint(l.s.status(), l.s.target.Controllers()) },
		func() string { return l.s.announcement().text(reachable) },
		func() string { return fmt.Sprint(l.s.Plan(l.s.current())) },
		func() string { return fmt.Sprint(l.s.target.Stats()) },
	} {
		wg.Go(func() {
			for !end.Load() {
				_ = ask()
			}
		})
	}
	rounds := testutil.Rounds(1, 4)
	for range rounds {
		for _, c := range configs {
			l.apply(c[0], c[1])
		}
	}
}

package gateways

import (
	"encoding/binary"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// newPair makes two gateways with two groups. A namespace is in the group with its number.
func newPair(t *testing.T, c *cephtest.Cluster) (a, b *gateway) {
	image := c.Image(t, "32M", "layering")
	second := c.Image(t, "32M", "layering")
	make2 := func(name string, cntlid int) *gateway {
		g := newGateway(t, c, image, name, cntlid)
		text := string(testutil.Value(os.ReadFile(g.file))(t))
		text = strings.Replace(text, "model: of "+name, "model: x", 1) // gateways that differ stay
		first := text[strings.Index(text, "      - nsid: 1"):]
		text = strings.NewReplacer("lease: 4s, ana_groups: [1]", // a busy machine keeps it
			"lease: 30s, balance_after: 1s, ana_groups: [1, 2]", "prefers: [1]",
			"prefers: [1, 2]").Replace(text)
		text += strings.NewReplacer("nsid: 1", "nsid: 2\n        ana_group: 2", image, second).
			Replace(first)
		testutil.Must(t, os.WriteFile(g.file, []byte(text), 0o600))
		return g
	}
	return make2("a", 1), make2("b", 2000)
}

// counter writes ascending numbers to both namespaces and reads them, on paths that stay connected
// to both gateways.
type counter struct {
	paths ways
	acked [2]uint64
}

// count writes and reads once if a path takes that.
func (c *counter) count(t *testing.T) {
	for i := range c.acked {
		nsid, data := uint32(i+1), make([]byte, hostBlock)
		var op host.Op
		for _, p := range c.paths {
			op.Read(nsid, 0, hostBlock/512, data)
			if got := uint64(0); p.do(1, &op) {
				got = binary.LittleEndian.Uint64(data)
				testutil.True(t, got == c.acked[i] || got == c.acked[i]+1,
					"namespace %d has %d, and %d was acknowledged", nsid, got, c.acked[i])
			}
			binary.LittleEndian.PutUint64(data, c.acked[i]+1)
			op.Write(nsid, 0, hostBlock/512, data, 0)
			if p.do(1, &op) {
				c.acked[i]++
			}
		}
	}
}

// TestBalance: of two groups, one moves to a gateway that starts, and again after it was killed,
// while a host writes. The status of both says why.
func TestBalance(t *testing.T) {
	t.Parallel() // it mostly waits
	a, b := newPair(t, cephtest.New(t))
	hosts := counter{paths: newWays(a, b)}
	defer hosts.paths.drop()
	whileCounting := func(what string, cond func() bool) {
		t.Helper()
		until(t, what, func() bool {
			hosts.count(t)
			return cond()
		})
	}
	serves := func(g *gateway) (n int, reasons string) {
		client := control.NewClient(g.socket())
		defer client.Close()
		for _, one := range testutil.Value(control.GetGroups.From(testutil.Context(t), client))(t) {
			reasons += one.Reason + "\n"
			if one.State == "serving" {
				n++
			}
		}
		return n, reasons
	}
	shared := func() bool {
		n, why := serves(a)
		m, why2 := serves(b)
		reasons := why + why2
		return n == 1 && m == 1 && strings.Contains(reasons, "serves fewer groups") &&
			strings.Contains(reasons, "served fewer groups")
	}
	both := func() bool { n, _ := serves(a); return n == 2 }
	a.start(t)
	whileCounting("a serves both groups", both)
	b.start(t)
	whileCounting("each serves one", shared)

	b.signal(t, syscall.SIGKILL)
	whileCounting("a serves both groups again", func() bool {
		// It does not wait for the lease. An error if it has taken the group.
		_ = post(t, a, control.PostFence, control.GatewayID{Gateway: b.name})
		return both()
	})
	b.start(t)
	whileCounting("each serves one again", shared)
}

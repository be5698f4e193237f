package isolation

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const (
	subNQN      = "nqn.2026-11.io.nvmf-target:isolation"
	victimNQN   = "nqn.2026-11.io.nvmf-target:victim"
	victimNQN2  = "nqn.2026-11.io.nvmf-target:victim2"
	culpritNQN  = "nqn.2026-11.io.nvmf-target:culprit"
	strangerNQN = "nqn.2026-11.io.nvmf-target:stranger" // is allowed nowhere

	blockSize     = 4096
	namespaceSize = 64 << 20
	mdts          = 1 << 20
)

// The namespaces. All but the last use RAM, but only the first is zero copy, so the others need
// data memory.
const (
	nsRAM  = 1
	nsPool = 2
	nsHung = 3 // does not answer while a test holds it
	nsThin = 4 // may hang when asked for its space
	// nsDrive may hang when asked for its health. It is added to the running target, since the
	// configuration has only drives of real devices.
	nsDrive = 5
	nsFile  = 6 // a file
)

// configuration is the default, with one reactor and 64 MiB, except that it does not pin threads,
// because they share their CPUs with the hosts of the test.
const configuration = `
listeners:
  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}
  - {transport: rdma, address: 10.0.0.1, on_unavailable: fail}
reactors: {count: 1, spin: 0s, memory: 64MiB}
subsystems:
  - nqn: ` + subNQN + `
    hosts: [` + victimNQN + `, ` + victimNQN2 + `, ` + culpritNQN + `]
    namespaces:
      - {nsid: 1, backend: ram, size: 1MiB}
      - {nsid: 2, backend: ram, size: 1MiB}
      - {nsid: 3, backend: ram, size: 1MiB}
      - {nsid: 4, backend: ram, size: 1MiB}
      - {nsid: 6, backend: ram, size: 1MiB}
`

// cmTimeout is the time for which the fake fabric waits for an answer to a connect request. It
// keeps memory for the same time after its end; close waits for that. A busy machine may suspend
// the test for seconds.
const cmTimeout = 10 * time.Second

// shorten reduces the time limits of the target to a tenth of the defaults, so that the long runs
// of "make soak" reach them. On a machine that stalls no victim could meet them.
func shorten(c *config.Config) {
	c.TCP.ICReqTimeout = time.Second
	c.TCP.ConnectTimeout = 3 * time.Second
	c.TCP.DataTimeout = 3 * time.Second
	c.TCP.SendTimeout = 3 * time.Second
	c.TCP.MemoryTimeout = 2 * time.Second
	c.TCP.LingerTimeout = time.Second
	c.RDMA.ConnectTimeout = 1500 * time.Millisecond
	c.RDMA.SendTimeout = 3 * time.Second
	c.RDMA.MemoryTimeout = 2 * time.Second
	for i := range c.Subsystems[0].Namespaces {
		c.Subsystems[0].Namespaces[i].Timeout = 2 * time.Second
	}
}

// kind is a kind of listener, and of the hosts that connect to it.
type kind struct {
	name    string
	link    nvme.TransportType
	digests bool
	tls     bool
	iwarp   bool   // the devices are
	soft    string // the stack of the rdma listener, which has no device, nor have its hosts
}

// env is a running target: the server of internal/app on TCP and a fake RDMA fabric.
type env struct {
	t      *testing.T
	kind                  // of the hosts in this test
	hosts  *soft.Provider // with a stack without a device
	server *app.Server
	fabric *verbstest.Fabric
	addrs  map[nvme.TransportType]netip.AddrPort
	log    *testutil.Log
	hung   *backendtest.Faulty // nsHung
	hangs  fault               // of nsHung: it keeps its commands
	full   fault               // of nsHung: it accepts nothing
	thin   *thinDevice
	drive  *drive // of nsDrive
	before counts // counts before the target started
}

func newEnv(t *testing.T, k kind, change func(*config.Config)) *env {
	t.Helper()
	e := &env{t: t, kind: k, addrs: map[nvme.TransportType]netip.AddrPort{}}
	e.before = e.process()
	t.Cleanup(e.settled)
	ram := func() backend.Device { return harness.OpenRAM(t, namespaceSize, blockSize) }
	e.hung = backendtest.NewFaulty(ram())
	e.thin, e.drive = &thinDevice{Device: ram()}, new(drive)
	e.thin.init()
	e.drive.init()
	e.hangs.on, e.hangs.off = func() { e.hung.Hold(nil) }, e.hung.Release
	e.full.on, e.full.off = func() { e.hung.Full(true) }, func() { e.hung.Full(false) }
	text, a := configuration, app.Options{Version: "isolation"}
	if k.soft != "" {
		at := map[string]string{"soft": "10.0.0.1", "soft-iwarp": "127.0.0.1, port: 0"}[k.soft]
		text = strings.Replace(text, "10.0.0.1", at+", stack: "+k.soft, 1)
		network := wiretest.New(wiretest.Options{})
		target := k.softMachine(t, network, "10.0.0.1")
		a.Soft = func(int, bool) *soft.Provider { return target }
		e.hosts = k.softMachine(t, network, "10.0.0.2")
	}
	device := verbstest.RoCE
	if k.iwarp {
		device = verbstest.IWARP
	}
	h := harness.Start(t, harness.Options{
		Config: text,
		Change: func(c *config.Config) {
			if testutil.Soaking() {
				shorten(c)
			}
			if k.tls {
				requireTLS(c)
			}
			if change != nil {
				change(c)
			}
		},
		Devices: map[uint32]backend.Device{
			nsRAM: ram(), nsPool: backendtest.NewFaulty(ram()), nsHung: e.hung, nsThin: e.thin,
			nsFile: e.openFile(),
		},
		IWARP: k.iwarp, Verbs: verbstest.Options{CMTimeout: cmTimeout}, App: a,
	})
	e.server, e.fabric, e.log = h.Server, h.Fabric, h.Log
	e.fabric.AddHost("culprit", device("dev0", netip.MustParseAddr("10.0.0.3")))
	e.fabric.AddHost("unplugged", device("dev0", netip.MustParseAddr("10.0.0.4")))
	e.must(h.Target.AddNamespace(subNQN, namespaces.Config{
		NSID: nsDrive, Device: h.RAM(namespaceSize, blockSize), Drive: e.drive,
	}))
	for _, a := range e.server.Addrs() {
		e.addrs[a.Transport] = a.AddrPort
	}
	return e
}

// softMachine returns the stack of a machine without a device. That of the target is at 10.0.0.1.
func (k *kind) softMachine(t *testing.T, network *wiretest.Network, addr string) *soft.Provider {
	o := soft.Options{
		IWARP: k.soft == "soft-iwarp", Engines: 1, Background: addr != "10.0.0.1",
		MPA: mpa.Options{CRC: true},
		// A busy machine may suspend the test for seconds.
		CM: cm.Options{ResponseTimeout: 16, AckTimeout: 17},
	}
	if !o.IWARP {
		o.Network = network.Host(addr, netip.MustParseAddr(addr))
	}
	p := soft.New(o)
	t.Cleanup(func() { testutil.Check(t, p.Close()) })
	return p
}

// openFile opens a new file.
func (e *env) openFile() backend.Device {
	d, err := file.Open(file.Config{
		Path: filepath.Join(e.t.TempDir(), "disk"), Size: namespaceSize, BlockSize: blockSize,
	})
	e.must(err)
	return d
}

func (e *env) must(err error) {
	e.t.Helper()
	testutil.Must(e.t, err)
}

// settled checks for leaks after the end of the target.
func (e *env) settled() {
	testutil.Check(e.t, e.settles("the process is as before the start", func() error {
		return e.process().above(e.before)
	}))
}

// settles waits until cond returns nil. Unlike testutil.Until, culprits may call it.
func (e *env) settles(what string, cond func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return fmt.Errorf("%s: not within %v: %w", what, testutil.Patience, err)
		}
	}
}

// transport connects a host over the link of the test; see transportOver.
func (e *env) transport(from netip.Addr, machine string) host.Transport {
	return e.transportOver(e.link, from, machine)
}

// transportOver connects a host: over TCP from an address, where the zero Addr means any, and over
// RDMA from a machine.
func (e *env) transportOver(link nvme.TransportType, from netip.Addr, machine string,
) host.Transport {
	if link == nvme.TransportRDMA {
		t := host.RDMA{Provider: e.fabric.Provider(machine), Addr: e.addrs[nvme.TransportRDMA]}
		if e.hosts != nil {
			t.Provider = e.hosts
		}
		return t
	}
	t := host.TCP{
		Addr: e.addrs[nvme.TransportTCP], Source: from,
		HeaderDigest: e.digests, DataDigest: e.digests,
	}
	if e.tls {
		t.PSK = hostPSK
	}
	return t
}

// tlsKey is the key of all hosts with TLS.
var tlsKey = sync.OnceValues(func() (*auth.TLSKey, error) {
	k, err := auth.NewTLSKey(auth.SHA256)
	if err == nil {
		testutil.Secret(nil, k.Reveal())
	}
	return k, err
})

// hostPSK returns the PSK of a host for a subsystem.
func hostPSK(nqn, sub string) (*auth.TLSPSK, error) {
	k, err := tlsKey()
	if err != nil {
		return nil, err
	}
	psks, err := k.PSKs(nqn, sub)
	if err != nil {
		return nil, err
	}
	return &psks[0], nil
}

// requireTLS makes all connections over TCP use TLS.
func requireTLS(c *config.Config) {
	c.TCP.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSRequired }
	c.TCP.PSKs = func(identity []byte) []auth.TLSPSK {
		id, err := auth.ParseTLSIdentity(identity)
		if err != nil {
			return nil
		}
		psk, err := hostPSK(id.HostNQN, id.SubNQN)
		if err != nil || psk.Identity != string(identity) {
			return nil
		}
		return []auth.TLSPSK{*psk}
	}
}

// address is a local address for hosts over TCP: 127.0.1.1 and following.
func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(n + 1)}) }

// hostOptions are the options of an allowed host or a stranger.
func hostOptions(nqn string) host.Options {
	o := host.Options{HostNQN: nqn, SubNQN: subNQN, Timeout: testutil.Patience}
	copy(o.HostID[:], nqn[len(nqn)-8:])
	return o
}

package target

import (
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// absentIO are I/O commands that are not served (NVM section 3.3), here for want of a store for
// marks and write protection.
var absentIO = map[string]nvme.Opcode{
	"Write Uncorrectable": 0x04, "I/O Management Receive": 0x12,
	"Zone Management Send": 0x79, "Zone Management Receive": 0x7A, "Zone Append": 0x7D,
}

// servedAdmin are the opcodes of the admin queue that an I/O controller serves.
var servedAdmin = []nvme.Opcode{
	nvme.AdminGetLogPage, nvme.AdminIdentify, nvme.AdminAbort, nvme.AdminSetFeatures,
	nvme.AdminGetFeatures, nvme.AdminAsyncEventReq, nvme.AdminSelfTest, nvme.AdminKeepAlive,
	nvme.FabricsOpcode,
}

// TestNotOffered: zones, write protection and security are neither reported nor served (I13, M15 to
// M17). A host would rely on them for its data.
func TestNotOffered(t *testing.T) {
	dev := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
	sub := SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []NamespaceConfig{{NSID: 1, Device: dev}},
	}
	r := newHarness(t, 1, sub)
	h := r.connectHost(1)
	id, err := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	r.must(err)
	ns, err := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
		identifyCommand(nvme.CNSNamespace, 1)).Data)
	r.must(err)
	for name, v := range map[string]uint64{
		"OACS": uint64(id.OACS &^ nvme.OACSSelfTest), "NWPC": uint64(id.NWPC),
		"SANICAP": uint64(id.SANICAP), "RPMBS": uint64(id.RPMBS),
		"ACWU": uint64(id.ACWU), "MC": uint64(ns.MC), "DPC": uint64(ns.DPC), "DPS": uint64(ns.DPS),
	} {
		if v != 0 {
			t.Errorf("%s is %#x: the controller reports what it does not support", name, v)
		}
	}
	// Sanitize Status
	r.status(h.admin, logCommand(0x81, 512, 0), nvme.InvalidLogPage|nvme.DNR)
	for _, fid := range []nvme.FID{
		nvme.FeatureWriteProtect,
	} {
		for _, c := range []*fabrictest.Command{
			getFeature(fid, nvme.FeatureCurrent, 0),
			setFeature(fid, 1),
		} {
			c.SQE.SetNSID(1)
			r.status(h.admin, c, invalidField)
		}
	}
	for i := range 256 {
		if op := nvme.Opcode(i); !slices.Contains(servedAdmin, op) {
			r.status(h.admin, command(op, 1, nil), invalidOpcode)
		}
	}
	for name, op := range absentIO {
		r.run(name, func(t *testing.T) {
			for _, data := range [][]byte{nil, make([]byte, 512)} {
				c := command(op, 1, data)
				if r.status(h.io[0], c, invalidOpcode); c.Returned != 0 {
					t.Errorf("%d bytes came back", c.Returned)
				}
			}
		})
	}
	if l := dev.take(); len(l) != 0 {
		t.Errorf("refused commands reached the device: %v", l)
	}
}

// TestNoAuthentication: no subsystem requires authentication or a secure channel, wherever a host
// looks (A01); authentication commands are refused on every queue and in every state, with and
// without data (A02, A07).
func TestNoAuthentication(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	auth := func(typ nvme.FabricsType, n int) *fabrictest.Command {
		c := command(nvme.FabricsOpcode, 0, make([]byte, n))
		c.SQE[4] = byte(typ)
		c.SQE[41], c.SQE[42], c.SQE[43] = 1, 1, 0xE9 // SPSP0, SPSP1, SECP: NVMe (Base section 6.2)
		c.SQE.SetCDW(11, uint32(n))                  // TL or AL
		return c
	}
	refused := func(where string, send func(c *fabrictest.Command), want nvme.Status) {
		t.Helper()
		for _, typ := range []nvme.FabricsType{nvme.FabricsAuthSend, nvme.FabricsAuthReceive} {
			for _, n := range []int{0, 1, 512, 4096, defaultTransfer + 512} {
				c := auth(typ, n)
				if send(c); c.CQE.Status()&^nvme.More != want || c.Returned != 0 {
					t.Errorf("%s, type %02Xh with %d bytes: %v and %d bytes, want %v", where,
						uint8(typ), n, c.CQE.Status(), c.Returned, want)
				}
			}
		}
	}
	on := func(q *fabrictest.Queue) func(
		*fabrictest.Command) {
		return func(c *fabrictest.Command) { r.do(q, c) }
	}

	q := r.dial(0)
	refused("before Connect", on(q), sequenceError)
	c := r.ok(q, adminArgs(testSub).command())
	if got := nvme.ConnectResult(c.CQE.DW0()); got != nvme.MakeConnectResult(got.CNTLID()) {
		t.Errorf("Connect answers %#x: a host would begin to authenticate", uint32(got))
	}
	refused("before the controller is enabled", on(q), invalidOpcode)
	h := r.connectHost(1)
	refused("admin queue", on(h.admin), invalidOpcode)
	refused("I/O queue", on(h.io[0]), invalidOpcode)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	_, list := discoveryHost(r, "192.0.2.1:4420").discoveryLog()
	for i, e := range list {
		if e.TREQ&3 == nvme.TREQRequired {
			t.Errorf("entry %d of the discovery log asks for a secure channel: TREQ %#x", i,
				uint8(e.TREQ))
		}
	}
}

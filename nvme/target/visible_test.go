package target

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestHiddenNamespace: to a host, a subsystem with namespaces of other hosts looks exactly like one
// without them. This holds for the data of Identify and log pages, and the status of features and
// I/O commands, for each class of NSID.
func TestHiddenNamespace(t *testing.T) {
	namespace := func(nsid uint32, hosts ...string) namespaces.Config {
		return namespaces.Config{
			NSID: nsid, Device: ramDevice(t, 1<<20, 512), UUID: uuid.UUID{byte(nsid)}, Hosts: hosts,
		}
	}
	r := newHarness(t, 2, subsystems.Config{
		NQN: testSub, AllowAnyHost: true, Serial: "S", CNTLIDMin: 1, CNTLIDMax: 1,
		Namespaces: []namespaces.Config{
			namespace(1), namespace(2, otherHost), namespace(3, otherHost, testHost),
			namespace(4, otherHost),
		},
	}, subsystems.Config{
		NQN: testSub + "2", AllowAnyHost: true, Serial: "S", CNTLIDMin: 1, CNTLIDMax: 1,
		Namespaces: []namespaces.Config{namespace(1), namespace(3)},
	})
	h := r.connectHost(1)
	w := r.connectHost(1, func(a *connectArgs) { a.sub += "2" })
	same := func(what string, a, b int, with func() *fabrictest.Command, io bool) {
		t.Helper()
		first, second := with(), with()
		on, off := h.admin, w.admin
		if io {
			on, off = h.io[0], w.io[0]
		}
		r.do(on, first)
		r.do(off, second)
		if first.CQE.Status() != second.CQE.Status() {
			t.Errorf("%s %#x of %d: %v, and %v where the namespace does not exist", what, a, b,
				first.CQE.Status(), second.CQE.Status())
		}
		if what == "identify" && a == int(nvme.CNSController) {
			clear(first.Data[768:1024]) // SUBNQN
			clear(second.Data[768:1024])
		}
		data := what == "identify" || what == "log" && nvme.LID(a) != nvme.LogTelemetryHost &&
			nvme.LID(a) != nvme.LogError // which has command identifiers
		testutil.True(t, !data || bytes.Equal(first.Data, second.Data), "%s %#x of %d differs",
			what, a, b)
	}
	c := r.target.find(testSub).lookup(1)
	for _, nsid := range []uint32{0, 1, 2, 3, 5, nvme.NSIDAll} {
		for i := range 256 {
			if c.IdentifyPage(nvme.CNS(i)) != nil {
				same("identify", i, int(nsid), func() *fabrictest.Command {
					return identifyCommand(nvme.CNS(i), nsid)
				}, false)
			}
			if c.LogPage(nvme.LID(i)) != nil {
				same("log", i, int(nsid), func() *fabrictest.Command {
					c := logCommand(nvme.LID(i), 512, 0)
					c.SQE.SetNSID(nsid)
					return c
				}, false)
			}
			if c.Feature(nvme.FID(i)) != nil {
				same("feature", i, int(nsid), func() *fabrictest.Command {
					c := getFeature(nvme.FID(i), 0, 0)
					c.SQE.SetNSID(nsid)
					return c
				}, false)
			}
			if ioOps[i].execute != nil {
				same("command", i, int(nsid), func() *fabrictest.Command {
					return rw(nvme.Opcode(i), nsid, 0, 1, make([]byte, 512))
				}, true)
			}
		}
	}
	r.enableCopy(h)
	r.status(h.io[0], copyTo(8, nvme.CopyNamespaces, source{nsid: 2, blocks: 1}), inactiveNamespace)
}

// TestHiddenBeforeItIsOpened: the same for a command that gets to a namespace only after the
// change, on a reactor that has not used it before.
func TestHiddenBeforeItIsOpened(t *testing.T) {
	const last = uint32(compoundWidth + 1)
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	var devs []*backendtest.Faulty
	for nsid := uint32(1); nsid < last; nsid++ {
		dev := faultyDevice(t, 1<<20, 512)
		dev.Hold(nil)
		devs = append(devs, dev)
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: nsid, Device: dev})
	}
	hidden := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
	sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: last, Device: hidden})
	r, h := joined(t, 1, 1, sub)
	flush := r.send(h.io[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
	for _, dev := range devs {
		r.until("the device has a flush", func() bool { return dev.Held() == 1 })
	}
	cfg := namespaces.Config{NSID: last, Hosts: []string{otherHost}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	for _, dev := range devs {
		dev.Release()
	}
	r.until("the command completes", func() bool { return flush.Done })
	ios := hidden.take()
	testutil.True(t, len(ios) == 0, "the device has got %+v", ios)
}

package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// dsm makes a Dataset Management command with a buffer of 4096 bytes, as Linux does.
func dsm(nsid uint32, deallocate bool, ranges ...[2]uint64) *fabrictest.Command {
	c := command(nvme.NVMDatasetManagement, nsid, make([]byte, 4096))
	c.SQE.DSM().Set(len(ranges), deallocate)
	for i, x := range ranges {
		(*nvme.DSMRange)(c.Data[16*i:]).Set(x[0], uint32(x[1]))
	}
	return c
}

// TestDatasetManagement: ranges, attributes and refusals (I08).
func TestDatasetManagement(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	q := r.connectHost(1).io[0]
	ones := bytes.Repeat([]byte{1}, 1<<20)
	blocks := func(from, n int) (zero int) {
		b := r.ok(q, rw(nvme.NVMRead, 1, uint64(from), uint32(n), make([]byte, n*512))).Data
		for i := range n {
			if bytes.Equal(b[i*512:][:512], make([]byte, 512)) {
				zero++
			}
		}
		return zero
	}
	r.ok(q, rw(nvme.NVMWrite, 1, 0, 2048, ones))
	var many [][2]uint64
	for i := range uint64(256) {
		many = append(many, [2]uint64{i * 4, 1})
	}
	r.ok(q, dsm(1, true, many...))
	if n := blocks(0, 2048); n != 256 {
		t.Errorf("%d blocks are deallocated, want 256", n)
	}
	r.ok(q, rw(nvme.NVMWrite, 1, 0, 2048, ones))
	r.ok(q, dsm(1, false, [2]uint64{0, 2048})) // AD 0: advice only
	r.status(q, dsm(1, true, [2]uint64{0, 8}, [2]uint64{2047, 2}), outOfRange)
	r.status(q, dsm(1, false, [2]uint64{0, 8}, [2]uint64{2047, 2}), outOfRange)
	r.status(q, dsm(1, true, [2]uint64{1 << 63, 1}), outOfRange)
	r.status(q, dsm(1, true, [2]uint64{1<<64 - 1, 0xFFFFFFFF}), outOfRange)
	if n := blocks(0, 2048); n != 0 {
		t.Errorf("%d blocks were deallocated by a refused command", n)
	}
	// empty and overlapping
	r.ok(q, dsm(1, true, [2]uint64{0, 0}, [2]uint64{5000, 0}, [2]uint64{10, 20}, [2]uint64{15, 30}))
	if n := blocks(0, 2048); n != 35 {
		t.Errorf("%d blocks, want 35", n)
	}
	short := dsm(1, true, [2]uint64{0, 1}, [2]uint64{1, 1})
	short.Data = short.Data[:31]
	r.status(q, short, invalidLength)
	exact := dsm(1, true, [2]uint64{0, 1}, [2]uint64{1, 1})
	exact.Data = exact.Data[:32]
	r.ok(q, exact)
	long := dsm(1, true, [2]uint64{0, 1})
	long.Data = make([]byte, 4112)
	r.status(q, long, invalidLength)
	r.status(q, dsm(9, true, [2]uint64{0, 1}), inactiveNamespace)
}

// TestWriteZeroes: zeroes in the right place with every flag (I09).
func TestWriteZeroes(t *testing.T) {
	sub := SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []NamespaceConfig{{NSID: 1, Device: ramDevice(t, 64<<20, 512)}},
	}
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	for _, f := range []nvme.RWFlags{0, nvme.RWDeallocate, nvme.RWDeallocate | nvme.RWFUA} {
		r.ok(q, rw(nvme.NVMWrite, 1, 65534, 4, bytes.Repeat([]byte{7}, 2048)))
		z := rw(nvme.NVMWriteZeroes, 1, 0, 65536, nil)
		z.SQE.RW().Set(0, 65536, f)
		r.ok(q, z)
		b := r.ok(q, rw(nvme.NVMRead, 1, 65534, 4, make([]byte, 2048))).Data
		if !bytes.Equal(b[:1024], make([]byte, 1024)) || b[1024] != 7 {
			t.Errorf("flags %#x: zeroes in the wrong place", f)
		}
	}
}

// TestBackendErrors: the status of each error of a device, but that of TestOffline. A failed read
// returns no data.
func TestBackendErrors(t *testing.T) {
	const protected = nvme.NamespaceWriteProtected | nvme.DNR
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	for _, tc := range []struct {
		err         error
		read, write nvme.Status
	}{
		{backend.ErrIO, nvme.UnrecoveredReadError, nvme.WriteFault},
		{backend.ErrNoSpace, nvme.CapacityExceeded | nvme.DNR, nvme.CapacityExceeded | nvme.DNR},
		{backend.ErrReadOnly, protected, protected},
		{backend.ErrOutOfRange, nvme.LBAOutOfRange | nvme.DNR, nvme.LBAOutOfRange | nvme.DNR},
		{backend.ErrUnsupported, nvme.InvalidOpcode | nvme.DNR, nvme.InvalidOpcode | nvme.DNR},
		{backend.ErrAborted, nvme.AbortRequested, nvme.AbortRequested},
		{errors.New("unheard of"), nvme.InternalError, nvme.InternalError},
	} {
		dev.Fail(func(*backend.IO) error { return fmt.Errorf("here: %w", tc.err) })
		read := r.status(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), tc.read)
		if read.Returned != 0 {
			t.Errorf("%v: %d bytes came back", tc.err, read.Returned)
		}
		r.status(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), tc.write)
		r.status(q, command(nvme.NVMFlush, 1, nil), tc.write)
		r.status(q, command(nvme.NVMFlush, nvme.NSIDAll, nil), tc.write)
		r.status(q, rw(nvme.NVMWriteZeroes, 1, 0, 1, nil), tc.write)
		want := tc.write
		if errors.Is(tc.err, backend.ErrUnsupported) {
			want = nvme.Success // deallocation is advice
		}
		r.status(q, dsm(1, true, [2]uint64{0, 1}, [2]uint64{2, 1}), want)
	}
	dev.Fail(nil)
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestTransportErrors: an error that the transport finds becomes the status of the command, and the
// device does not see it.
func TestTransportErrors(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	dev.Fail(func(*backend.IO) error {
		t.Error("the device got a command")
		return backend.ErrIO
	})
	c := rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Malformed = nvme.SGLTypeInvalid | nvme.DNR
	r.status(q, c, nvme.SGLTypeInvalid|nvme.DNR)
	c = rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Broken = nvme.TransientTransportError
	r.status(q, c, nvme.TransientTransportError)
	c = rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	c.Lost = true
	r.send(q, c)
	if q.Outstanding() != 0 || c.Done {
		t.Error("an abandoned command is outstanding or done")
	}
}

// recorder records the IOs that a device gets.
type recorder struct {
	backend.Device
	mu   sync.Mutex
	ios  []backend.IO
	info func(*backend.Info)
}

func (d *recorder) Info() backend.Info {
	i := d.Device.Info()
	d.info(&i)
	return i
}

func (d *recorder) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := d.Device.OpenChannel(r)
	return &recordedChannel{ch, d}, err
}

type recordedChannel struct {
	backend.Channel
	d *recorder
}

func (c *recordedChannel) Submit(ios []*backend.IO) int {
	c.d.mu.Lock()
	for _, io := range ios {
		c.d.ios = append(c.d.ios, backend.IO{Op: io.Op, Flags: io.Flags, Off: io.Off, Len: io.Len})
	}
	c.d.mu.Unlock()
	return c.Channel.Submit(ios)
}

func (d *recorder) take() []backend.IO {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.ios
	d.ios = nil
	return l
}

// TestVolatileCache: VWC is right, FUA and WCE reach the device, and a cache that the host does not
// know of is written through.
func TestVolatileCache(t *testing.T) {
	dev := &recorder{
		Device: ramDevice(t, 1<<20, 512),
		info:   func(i *backend.Info) { i.VolatileCache = true },
	}
	sub := SubsystemConfig{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []NamespaceConfig{{NSID: 1, Device: dev}},
	}
	r := newHarness(t, 1, sub, SubsystemConfig{NQN: testSub + "2", AllowAnyHost: true})
	h := r.connectHost(1)
	q := h.io[0]
	fua := func(c *fabrictest.Command) bool {
		t.Helper()
		dev.take()
		r.ok(q, c)
		l := dev.take()
		return len(l) == 1 && l[0].Flags&backend.FUA != 0
	}
	write := func() *fabrictest.Command { return rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)) }
	forced := write()
	forced.SQE.RW().Set(0, 1, nvme.RWFUA)
	id, _ := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	if id.VWC != nvme.VWCPresent|nvme.VWCFlushAll {
		t.Errorf("VWC %#x", id.VWC)
	}
	if fua(write()) || !fua(forced) {
		t.Error("FUA does not follow the command")
	}
	if v := r.ok(h.admin, getFeature(nvme.FeatureVolatileWriteCache, 0, 0)).CQE.DW0(); v != 1 {
		t.Errorf("WCE %d", v)
	}
	r.ok(h.admin, setFeature(nvme.FeatureVolatileWriteCache, 0))
	if !fua(write()) || !fua(rw(nvme.NVMWriteZeroes, 1, 0, 1, nil)) {
		t.Error("with WCE 0 a write is not forced")
	}
	r.ok(h.admin, setFeature(nvme.FeatureVolatileWriteCache, 1))
	if fua(write()) {
		t.Error("with WCE 1 a write is forced")
	}

	// The second host knows of no cache; the namespace with one is added later.
	h2 := r.connectHost(1, func(a *connectArgs) { a.sub = testSub + "2" })
	r.must(r.target.AddNamespace(testSub+"2", NamespaceConfig{NSID: 1, Device: dev}))
	q = h2.io[0]
	if !fua(write()) {
		t.Error("a write to a cache that the host does not know of is not forced")
	}
}

// TestFlushAll: Flush with the broadcast NSID flushes every namespace.
func TestFlushAll(t *testing.T) {
	var devs []*recorder
	sub := SubsystemConfig{NQN: testSub, AllowAnyHost: true}
	for i := range 20 {
		d := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
		devs = append(devs, d)
		sub.Namespaces = append(sub.Namespaces, NamespaceConfig{NSID: uint32(i + 1), Device: d})
	}
	r := newHarness(t, 1, sub)
	r.ok(r.connectHost(1).io[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
	for i, d := range devs {
		if l := d.take(); len(l) != 1 || l[0].Op != backend.OpFlush {
			t.Errorf("namespace %d: %v", i+1, l)
		}
	}
}

// TestDuplicateCID: commands with the same identifier are served like others, each with one CQE
// (S16).
func TestDuplicateCID(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	q := r.connectHost(1).io[0]
	dev.Hold(nil)
	a, b := rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)),
		rw(nvme.NVMRead, 1, 1, 1, make([]byte, 512))
	b.SQE.SetCID(a.SQE.CID())
	r.must(q.Send(a, b))
	r.until("the device has both", func() bool { return dev.Held() == 2 })
	dev.Release()
	r.until("both complete", func() bool { return a.Done && b.Done })
}

// TestMaxTransfer: the configured size is what Identify reports and what a command may transfer.
func TestMaxTransfer(t *testing.T) {
	for _, most := range []int{64 << 10, 4 << 20} {
		r := newHarness(t, 1,
			SubsystemConfig{
				NQN: testSub, AllowAnyHost: true, MaxTransfer: most,
				Namespaces: []NamespaceConfig{
					{NSID: 1, Device: ramDevice(t, 16<<20, 4096)},
				},
			})
		h := r.connectHost(1)
		id, err := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
			identifyCommand(nvme.CNSController, 0)).Data)
		if err != nil || 4096<<id.MDTS != most {
			t.Errorf("MDTS is %d for %d bytes: %v", id.MDTS, most, err)
		}
		q, n := h.io[0], uint32(most/4096)
		for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
			r.status(q, rw(op, 1, 0, n, make([]byte, most)), nvme.Success)
			r.status(q, rw(op, 1, 0, n+1, make([]byte, most+4096)), invalidField)
		}
	}
}

// TestBackends writes and verifies at random on every backend.
func TestBackends(t *testing.T) {
	const size = 4 << 20
	open := map[string]func(t *testing.T, bs int) backend.Device{
		"ram": func(t *testing.T, bs int) backend.Device { return ramDevice(t, size, bs) },
		"file": func(t *testing.T, bs int) backend.Device {
			d, err := file.Open(file.Config{Path: t.TempDir() + "/disk", Size: size, BlockSize: bs})
			if err != nil {
				t.Fatal(err)
			}
			closeLast(t, d)
			return d
		},
		"null": func(t *testing.T, bs int) backend.Device {
			d, err := null.Open(null.Config{Size: size, BlockSize: bs})
			if err != nil {
				t.Fatal(err)
			}
			closeLast(t, d)
			return d
		},
	}
	for name, f := range open {
		for _, bs := range []int{512, 4096} {
			t.Run(fmt.Sprintf("%s %d", name, bs), func(t *testing.T) {
				sub := SubsystemConfig{
					NQN: testSub, AllowAnyHost: true,
					Namespaces: []NamespaceConfig{{NSID: 1, Device: f(t, bs)}},
				}
				r := newHarness(t, 2, sub)
				q := r.connectHost(1).io[0]
				model := make([]byte, size)
				rnd := rand.New(rand.NewPCG(1, uint64(bs)))
				for range 40 {
					n := 1 + rnd.IntN(defaultTransfer/bs)
					at := rnd.IntN(size/bs - n + 1)
					part := model[at*bs : (at+n)*bs]
					switch rnd.IntN(4) {
					case 0, 1:
						if name != "null" {
							v := rnd.Uint64()
							for i := 0; i < len(part); i += 512 {
								binary.LittleEndian.PutUint64(part[i:], v+uint64(i))
							}
						}
						r.ok(q, rw(nvme.NVMWrite, 1, uint64(at), uint32(n), bytes.Clone(part)))
					case 2:
						clear(part)
						r.ok(q, rw(nvme.NVMWriteZeroes, 1, uint64(at), uint32(n), nil))
					}
					if got := r.ok(q,
						rw(nvme.NVMRead, 1, uint64(at), uint32(n),
							make([]byte, n*bs))); !bytes.Equal(got.Data, part) {
						t.Fatalf("blocks %d+%d differ", at, n)
					}
				}
				r.ok(q, command(nvme.NVMFlush, 1, nil))
			})
		}
	}
}

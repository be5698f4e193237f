package target

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
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
	testutil.True(t, q.Outstanding() == 0 && !c.Done, "an abandoned command is outstanding or done")
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

// TestBackends writes and verifies at random on every backend.
func TestBackends(t *testing.T) {
	const size, most = 1 << 20, 128 << 10
	open := map[string]func(t *testing.T, bs int) backend.Device{
		"ram": func(t *testing.T, bs int) backend.Device { return ramDevice(t, size, bs) },
		"file": func(t *testing.T, bs int) backend.Device {
			d, err := file.Open(file.Config{Path: t.TempDir() + "/disk", Size: size, BlockSize: bs})
			testutil.Must(t, err)
			closeLast(t, d)
			return d
		},
		"null": func(t *testing.T, bs int) backend.Device {
			d := testutil.Value(null.Open(null.Config{Size: size, BlockSize: bs}))(t)
			closeLast(t, d)
			return d
		},
	}
	for name, f := range open {
		for _, bs := range []int{512, 4096} {
			t.Run(fmt.Sprintf("%s %d", name, bs), func(t *testing.T) {
				sub := subsystems.Config{
					NQN: testSub, AllowAnyHost: true,
					Namespaces: []namespaces.Config{{NSID: 1, Device: f(t, bs)}},
				}
				r := newHarness(t, 2, sub)
				q := r.connectHost(1).io[0]
				model := make([]byte, size)
				rnd := rand.New(rand.NewPCG(1, uint64(bs)))
				for range 40 {
					n := 1 + rnd.IntN(most/bs)
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

// TestCompletionsAreClean: DW0 and DW1 of a completion are zero unless the command has a result.
// Reserved fields are always zero. The last completion in the same memory has no effect
// (CVE-2024-41079).
func TestCompletionsAreClean(t *testing.T) {
	r, h := joined(t, 1, 1, ramSubsystem(t, 1))
	fabrics := func(typ int) *fabrictest.Command {
		c := command(nvme.FabricsOpcode, 0, nil)
		c.SQE[4] = byte(typ)
		return c
	}
	check := func(q *fabrictest.Queue, what string, c *fabrictest.Command, result uint64) {
		t.Helper()
		if q == h.admin {
			r.ok(q, propertyGetCommand(nvme.PropertyCAP)) // eight bytes in the same place
		}
		r.do(q, c)
		if got := c.CQE.Result(); got != result || c.CQE.ReservedSet() {
			t.Errorf("%s: completion % x, want the result %#x and zeroes in reserved fields",
				what, c.CQE, result)
		}
	}
	for op := range 256 {
		switch nvme.Opcode(op) {
		case nvme.FabricsOpcode, nvme.AdminAbort, nvme.AdminAsyncEventReq:
			continue
		}
		check(h.admin, fmt.Sprintf("admin opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
		check(h.io[0], fmt.Sprintf("I/O opcode %02Xh", op), command(nvme.Opcode(op), 7, nil), 0)
	}
	for typ := range 256 {
		check(h.admin, fmt.Sprintf("Fabrics type %02Xh", typ), fabrics(typ), 0)
		if nvme.FabricsType(typ) != nvme.FabricsDisconnect {
			check(h.io[0], fmt.Sprintf("Fabrics type %02Xh on an I/O queue", typ), fabrics(typ), 0)
		}
	}
	check(h.admin, "a property of 4 bytes", propertyGetCommand(nvme.PropertyVS),
		uint64(nvme.Version20))
	check(h.admin, "Property Set", propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)), 0)
	check(h.admin, "Identify", identifyCommand(nvme.CNSController, 0), 0)
	check(h.admin, "Get Log Page", logCommand(nvme.LogSMART, 512, 0), 0)
	check(h.admin, "Set Features", setFeature(nvme.FeatureWriteAtomicity, 1), 0)
	check(h.admin, "Get Features",
		getFeature(nvme.FeatureNumberOfQueues, nvme.FeatureCapabilities, 0), 4)
	check(h.admin, "Get Features with data",
		getFeatureInto(nvme.FeatureHostIdentifier, 1, make([]byte, 16)), 0)
	check(h.io[0], "Write", rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Read", rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), 0)
	check(h.io[0], "Flush", command(nvme.NVMFlush, 1, nil), 0)
	check(h.io[0], "Dataset Management", dsm(1, true, [2]uint64{0, 1}), 0)
}

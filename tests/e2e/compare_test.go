package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// wideDevice has physical blocks of 64 KiB.
type wideDevice struct{ backend.Device }

func (d wideDevice) Info() backend.Info {
	i := d.Device.Info()
	i.PhysicalBlockSize = 64 << 10
	return i
}

// TestCompare: Compare, and fused Compare and Write, with data in the capsule and transferred, over
// every variant of the transports.
func TestCompare(t *testing.T) {
	t.Parallel()
	for _, v := range Variants {
		t.Run(v.Name, func(t *testing.T) {
			o := v.Options
			o.Devices = []backend.Device{wideDevice{harness.OpenRAM(t, 4<<20, 512)}}
			testCompare(t, New(t, o), v)
		})
	}
}

func testCompare(t *testing.T, h *Env, v Variant) {
	c := h.Dial(v)
	q := h.Open(c, 1, 32)
	ctx := testutil.Context(t)
	buf := h.Buffer(c, 2*MDTS)
	old, data := buf[:MDTS], buf[MDTS:]
	pattern(old, 1)
	pattern(data, 2)
	const failed = nvme.CompareFailure | nvme.DNR
	for _, size := range []int{512, 4096, 4608, 8192, 65536, MDTS} {
		blocks := uint32(size / 512)
		h.Must(hosttest.Write(ctx, q, 1, 1, blocks, old[:size], 0))
		h.Must(hosttest.Compare(ctx, q, 1, 1, blocks, old[:size]))
		h.Must(hosttest.Verify(ctx, q, 1, 1, blocks))
		old[size-1] ^= 1
		wantStatus(t, "Compare of something else", hosttest.Compare(ctx, q, 1, 1, blocks,
			old[:size]), failed)
		old[size-1] ^= 1
		if size > 64<<10 {
			continue
		}
		for range 3 { // old, data, and the other way round
			for i, want := range [][2]nvme.Status{
				{nvme.Success, nvme.Success}, {failed, nvme.AbortedFailedFused},
			} {
				st := testutil.Value(
					hosttest.CompareAndWrite(ctx, q, 1, 1, blocks, old[:size], data[:size]))(h.T)
				testutil.True(t, st[0]&^nvme.More == want[0] && st[1]&^nvme.More == want[1],
					"%d bytes, try %d: %v, %v", size, i, st[0], st[1])
			}
			h.Must(hosttest.Compare(ctx, q, 1, 1, blocks, data[:size]))
			old, data = data, old
		}
		pattern(old, 1)
		pattern(data, 2)
	}
}

// TestCopy copies within a namespace and between two, over every variant of the transports.
func TestCopy(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.Must(h.Target.AddNamespace(SubNQN,
			namespaces.Config{NSID: 3, Device: h.RAM(4<<20, 512)}))
		c := h.Dial(v)
		q := h.Open(c, 1, 32)
		ctx := testutil.Context(t)
		var enable host.Op
		enable.SQE.SetOpcode(nvme.AdminSetFeatures)
		enable.SQE.Features().Set(nvme.FeatureHostBehavior, 0)
		enable.Data = make([]byte, nvme.HostBehaviorSize)
		enable.Data[nvme.HostBehaviorCDFE] = byte(nvme.CopyNamespaces.Bit())
		cqe, err := c.Admin(ctx, &enable)
		if h.Must(err); !cqe.Status().OK() {
			t.Fatal(cqe.Status())
		}
		data, back := h.Buffer(c, MDTS), h.Buffer(c, MDTS)
		pattern(data, 7)
		h.Must(hosttest.Write(ctx, q, 3, 0, MDTS/512, data, 0))
		ranges := h.Buffer(c, 2*nvme.CopyRangeSize)
		for i, half := range []uint64{MDTS / 1024, 0} { // exchanged
			(*nvme.CopyRange)(ranges[i*nvme.CopyRangeSize:]).Set(3, half, MDTS/1024)
		}
		h.Must(hosttest.Copy(ctx, q, 1, 100, nvme.CopyNamespaces, ranges, nvme.RWFUA))
		h.Must(hosttest.Read(ctx, q, 1, 100, MDTS/512, back))
		exchanged := append(append([]byte{}, data[MDTS/2:]...), data[:MDTS/2]...)
		testutil.Equal(t, Differ(back, exchanged), "", "between namespaces")
		h.Must(hosttest.Copy(ctx, q, 3, MDTS/512, nvme.CopyRanges, ranges, 0))
		h.Must(hosttest.Compare(ctx, q, 3, MDTS/512, MDTS/512, back))
	})
}

// Package hosttest has host commands that only tests of controllers send, and connections over TCP
// on which tests send any bytes.
package hosttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// The limits on lists of a controller in a test: 4 MiB of namespaces, 20 MiB of discovery entries.
const (
	maxNamespaces = 1 << 20
	maxDiscovered = 1 << 14
)

// command sends an admin command and returns an unsuccessful status as an error.
func command(ctx context.Context, c *host.Controller, what string, op *host.Op) (nvme.CQE,
	error,
) {
	cqe, err := c.Admin(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return cqe, err
}

// run is Queue.Do, with an unsuccessful status returned as an error.
func run(ctx context.Context, q *host.Queue, op *host.Op) error {
	cqe, err := q.Do(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	return err
}

// set replaces the command of an Op and its data.
func set(o *host.Op, code nvme.Opcode, nsid uint32, data []byte) {
	o.SQE = nvme.SQE{}
	o.SQE.SetOpcode(code)
	o.SQE.SetNSID(nsid)
	o.Data, o.Blocks, o.Raw = data, 0, false
}

// SetWriteZeroes makes o a Write Zeroes of blocks logical blocks.
func SetWriteZeroes(o *host.Op, nsid uint32, slba uint64, blocks uint32, flags nvme.RWFlags) {
	set(o, nvme.NVMWriteZeroes, nsid, nil)
	o.SQE.RW().Set(slba, blocks, flags)
}

// SetCompare makes o a Compare of blocks logical blocks with data.
func SetCompare(o *host.Op, nsid uint32, slba uint64, blocks uint32, data []byte) {
	set(o, nvme.NVMCompare, nsid, data)
	o.SQE.RW().Set(slba, blocks, 0)
}

// SetVerify makes o a Verify of blocks logical blocks.
func SetVerify(o *host.Op, nsid uint32, slba uint64, blocks uint32) {
	set(o, nvme.NVMVerify, nsid, nil)
	o.SQE.RW().Set(slba, blocks, 0)
}

// SetCopy makes o a Copy of the source ranges in data, nvme.CopyRangeSize bytes each, to sdlba.
func SetCopy(o *host.Op, nsid uint32, sdlba uint64, format nvme.CopyFormat, data []byte,
	flags nvme.RWFlags,
) {
	set(o, nvme.NVMCopy, nsid, data)
	o.SQE.Copy().Set(sdlba, len(data)/nvme.CopyRangeSize, format, flags)
}

// SetDiscard makes o a Dataset Management that deallocates the ranges in data, nvme.DSMRangeSize
// bytes each.
func SetDiscard(o *host.Op, nsid uint32, data []byte) {
	set(o, nvme.NVMDatasetManagement, nsid, data)
	o.SQE.DSM().Set(len(data)/nvme.DSMRangeSize, true)
}

// Read reads blocks logical blocks into data.
func Read(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32,
	data []byte,
) error {
	var op host.Op
	op.Read(nsid, slba, blocks, data)
	return run(ctx, q, &op)
}

// Write writes blocks logical blocks from data.
func Write(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32,
	data []byte, flags nvme.RWFlags,
) error {
	var op host.Op
	op.Write(nsid, slba, blocks, data, flags)
	return run(ctx, q, &op)
}

// Flush makes completed writes durable.
func Flush(ctx context.Context, q *host.Queue, nsid uint32) error {
	var op host.Op
	op.Flush(nsid)
	return run(ctx, q, &op)
}

// Events enables asynchronous events and keeps one request outstanding, as Linux does. The channel
// is closed when the admin queue has ended. It buffers 64 events; further ones are dropped until it
// is read.
func Events(ctx context.Context, c *host.Controller, mask nvme.EventMask) (<-chan nvme.AsyncEvent,
	error,
) {
	events := make(chan nvme.AsyncEvent, 64)
	request := func() func() (nvme.CQE, error) {
		var op host.Op
		op.SQE.SetOpcode(nvme.AdminAsyncEventReq)
		return c.AdminAsync(context.Background(), &op)
	}
	_, err := c.SetFeature(ctx, nvme.FeatureAsyncEventConfig, uint32(mask))
	if err != nil {
		return nil, err
	}
	wait := request()
	go func() {
		defer close(events)
		for {
			cqe, err := wait()
			if err != nil || !cqe.Status().OK() {
				return
			}
			select {
			case events <- nvme.AsyncEvent(cqe.DW0()):
			default:
			}
			wait = request()
		}
	}()
	return events, nil
}

// CompareAndWrite sends a fused pair that replaces blocks logical blocks by data if they are equal
// to old. It returns the statuses of both commands in order of completion. No other command may be
// outstanding.
func CompareAndWrite(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32,
	old, data []byte,
) (st [2]nvme.Status, err error) {
	var ops [2]host.Op
	SetCompare(&ops[0], nsid, slba, blocks, old)
	ops[1].Write(nsid, slba, blocks, data, 0)
	var cids [2]uint16
	for i := range ops {
		ops[i].SQE.SetFlags(uint8(i + 1))
		if cids[i], err = q.Submit(&ops[i]); err != nil {
			return st, err
		}
	}
	for i := range ops {
		cqe, err := next(ctx, q)
		if err != nil {
			return st, err
		}
		if cqe.CID() != cids[i] {
			return st, fmt.Errorf("command %d of a fused pair completes out of order", i)
		}
		st[i] = cqe.Status()
	}
	return st, nil
}

func next(ctx context.Context, q *host.Queue) (nvme.CQE, error) {
	var done [1]host.Completion
	for {
		if n, err := q.Poll(done[:]); n == 1 || err != nil {
			return done[0].CQE, err
		}
		if err := ctx.Err(); err != nil {
			return nvme.CQE{}, err
		}
		if err := q.Wait(time.Millisecond); err != nil {
			return nvme.CQE{}, err
		}
	}
}

// WriteZeroes overwrites blocks logical blocks with zeroes.
func WriteZeroes(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32,
	flags nvme.RWFlags,
) error {
	var op host.Op
	SetWriteZeroes(&op, nsid, slba, blocks, flags)
	return run(ctx, q, &op)
}

// Compare compares blocks logical blocks with data.
func Compare(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32,
	data []byte,
) error {
	var op host.Op
	SetCompare(&op, nsid, slba, blocks, data)
	return run(ctx, q, &op)
}

// Verify makes the target read blocks logical blocks.
func Verify(ctx context.Context, q *host.Queue, nsid uint32, slba uint64, blocks uint32) error {
	var op host.Op
	SetVerify(&op, nsid, slba, blocks)
	return run(ctx, q, &op)
}

// Copy copies the source ranges in data, nvme.CopyRangeSize bytes each, to sdlba.
func Copy(ctx context.Context, q *host.Queue, nsid uint32, sdlba uint64, format nvme.CopyFormat,
	data []byte, flags nvme.RWFlags,
) error {
	var op host.Op
	SetCopy(&op, nsid, sdlba, format, data, flags)
	return run(ctx, q, &op)
}

// Discard deallocates the ranges in data, nvme.DSMRangeSize bytes each.
func Discard(ctx context.Context, q *host.Queue, nsid uint32, data []byte) error {
	var op host.Op
	SetDiscard(&op, nsid, data)
	return run(ctx, q, &op)
}

// StatusOf returns the NVMe status in err: Success for nil, and false if err has none.
func StatusOf(err error) (nvme.Status, bool) {
	var st nvme.Status
	return st, err == nil || errors.As(err, &st)
}

// ActiveNamespaces reads the whole active namespace list, CNS 02h, page by page.
func ActiveNamespaces(ctx context.Context, c *host.Controller) ([]uint32, error) {
	var all []uint32
	last := uint32(0)
	for {
		b, err := c.Identify(ctx, nvme.CNSActiveNamespaces, last, 0)
		if err != nil {
			return nil, err
		}
		ids, err := targettest.ParseNamespaceList(b)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if id <= last {
				return nil, fmt.Errorf("active namespace list: %d after %d", id, last)
			}
			last = id
		}
		all = append(all, ids...)
		if len(ids) < nvme.NamespacesPerList {
			return all, nil
		} else if len(all) > maxNamespaces {
			return nil, fmt.Errorf("active namespace list: more than %d namespaces", maxNamespaces)
		}
	}
}

// GetLog reads n bytes (a multiple of 4) of a log page from offset.
func GetLog(ctx context.Context, c *host.Controller, lid nvme.LID, nsid uint32, offset uint64,
	n int, lsp uint8, rae bool,
) ([]byte, error) {
	op := host.Op{Data: make([]byte, n)}
	op.SQE.SetOpcode(nvme.AdminGetLogPage)
	op.SQE.SetNSID(nsid)
	op.SQE.GetLog().Set(lid, uint64(n), offset, lsp, rae)
	_, err := command(ctx, c, fmt.Sprintf("get log %#x", lid), &op)
	return op.Data, err
}

// GetFeature reads a feature that has no data and returns DW0.
func GetFeature(ctx context.Context, c *host.Controller, fid nvme.FID) (uint32, error) {
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminGetFeatures)
	op.SQE.SetCDW(10, uint32(fid))
	cqe, err := command(ctx, c, fmt.Sprintf("get feature %#x", fid), &op)
	return cqe.DW0(), err
}

// KeepAlive sends a Keep Alive.
func KeepAlive(ctx context.Context, c *host.Controller) error {
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminKeepAlive)
	_, err := command(ctx, c, "keep alive", &op)
	return err
}

// Abort sends an Abort for one command; aborted is the answer of the controller.
func Abort(ctx context.Context, c *host.Controller, sqid, cid uint16) (aborted bool, err error) {
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminAbort)
	op.SQE.Abort().Set(sqid, cid)
	cqe, err := command(ctx, c, "abort", &op)
	return cqe.DW0()&nvme.AbortNotDone == 0, err
}

// Discover reads the Discovery log as libnvme does: the header, the entries, and the header again,
// until GENCTR stays the same.
func Discover(ctx context.Context, c *host.Controller) (*nvme.DiscoveryHeader,
	[]*nvme.DiscoveryEntry, error,
) {
	for range 10 {
		b, err := GetLog(ctx, c, nvme.LogDiscovery, 0, 0, 20, 0, true)
		if err != nil {
			return nil, nil, err
		}
		before, err := targettest.ParseDiscoveryHeader(b)
		if err != nil {
			return nil, nil, err
		}
		entries, err := discoveryEntries(ctx, c, before.NUMREC)
		if err != nil {
			return nil, nil, err
		}
		if b, err = GetLog(ctx, c, nvme.LogDiscovery, 0, 0, 20, 0, false); err != nil {
			return nil, nil, err
		}
		if after, err := targettest.ParseDiscoveryHeader(b); err != nil || *after == *before {
			return after, entries, err
		}
	}
	return nil, nil, errors.New("discovery log: GENCTR changed during each of 10 attempts")
}

func discoveryEntries(ctx context.Context, c *host.Controller, n uint64) (
	[]*nvme.DiscoveryEntry, error,
) {
	const chunk = 4096
	if n > maxDiscovered {
		return nil, fmt.Errorf("discovery log: NUMREC %d, at most %d are read", n, maxDiscovered)
	}
	var entries []*nvme.DiscoveryEntry
	for off := uint64(0); off < n*nvme.DiscoveryEntrySize; off += chunk {
		size := min(n*nvme.DiscoveryEntrySize-off, chunk)
		b, err := GetLog(ctx, c, nvme.LogDiscovery, 0, nvme.DiscoveryHeaderSize+off, int(size), 0,
			true)
		if err != nil {
			return nil, err
		}
		for ; len(b) > 0; b = b[nvme.DiscoveryEntrySize:] {
			e, err := nvme.Parse[nvme.DiscoveryEntry](b)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// Concatenate authenticates on an admin queue without TLS, and returns the transport with the
// generated PSK (secure channel concatenation).
func Concatenate(ctx context.Context, t host.TCP, o host.Options) (host.TCP, error) {
	o.Concatenation = auth.NewPSK
	c, err := host.Dial(ctx, t, o)
	if err != nil {
		return t, err
	}
	defer c.Close()
	if c.Options().Generated == nil {
		return t, errors.New("the controller requires no authentication")
	}
	return withPSK(t, c.Options().Generated), nil
}

// ReplacePSK authenticates again, and returns the transport with a new PSK for later connections to
// the subsystem.
func ReplacePSK(ctx context.Context, c *host.Controller, t host.TCP) (host.TCP, error) {
	o := c.Options()
	o.Concatenation = auth.ReplacePSK
	err := c.Authenticate(ctx)
	return withPSK(t, o.Generated), err
}

func withPSK(t host.TCP, p *auth.TLSPSK) host.TCP {
	t.PSK = func(string, string) (*auth.TLSPSK, error) { return p, nil }
	return t
}

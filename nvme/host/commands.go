package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// What a controller can make this host hold: of namespaces 4 MiB, of discovery entries 20 MiB.
const (
	maxNamespaces = 1 << 20
	maxDiscovered = 1 << 14
)

// command sends an admin command and returns an unsuccessful status as an error.
func (c *Controller) command(ctx context.Context, what string, op *Op) (nvme.CQE, error) {
	cqe, err := c.Admin(ctx, op)
	if err == nil && !cqe.Status().OK() {
		err = cqe.Status()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return cqe, err
}

// PropertyGet reads a property.
func (c *Controller) PropertyGet(ctx context.Context, off nvme.PropertyOffset) (uint64, error) {
	var op Op
	op.SQE.Property().Set(nvme.FabricsPropertyGet, off, 0)
	cqe, err := c.command(ctx, fmt.Sprintf("property get %#x", off), &op)
	if err == nil && off.Size() == 4 && cqe.Result()>>32 != 0 {
		err = fmt.Errorf("property get %#x: upper half of a 4-byte property is %#x", off,
			cqe.Result()>>32)
	}
	return cqe.Result(), err
}

// PropertySet writes a property.
func (c *Controller) PropertySet(ctx context.Context, off nvme.PropertyOffset, v uint64) error {
	var op Op
	op.SQE.Property().Set(nvme.FabricsPropertySet, off, v)
	_, err := c.command(ctx, fmt.Sprintf("property set %#x", off), &op)
	return err
}

// Identify reads an Identify data structure of 4096 bytes.
func (c *Controller) Identify(ctx context.Context, cns nvme.CNS, nsid uint32, csi nvme.CSI) ([]byte,
	error,
) {
	op := Op{Data: make([]byte, nvme.IdentifyDataSize)}
	op.SQE.SetOpcode(nvme.AdminIdentify)
	op.SQE.SetNSID(nsid)
	op.SQE.Identify().Set(cns, 0, csi)
	_, err := c.command(ctx, fmt.Sprintf("identify CNS %#x NSID %#x", cns, nsid), &op)
	return op.Data, err
}

// IdentifyController reads CNS 01h.
func (c *Controller) IdentifyController(ctx context.Context) (*nvme.IdentifyController, error) {
	b, err := c.Identify(ctx, nvme.CNSController, 0, 0)
	if err != nil {
		return nil, err
	}
	return nvme.Parse[nvme.IdentifyController](b)
}

// IdentifyNamespace reads CNS 00h.
func (c *Controller) IdentifyNamespace(ctx context.Context, nsid uint32) (*nvme.IdentifyNamespace,
	error,
) {
	b, err := c.Identify(ctx, nvme.CNSNamespace, nsid, 0)
	if err != nil {
		return nil, err
	}
	return nvme.Parse[nvme.IdentifyNamespace](b)
}

// NamespaceIDs reads the descriptors of a namespace, CNS 03h.
func (c *Controller) NamespaceIDs(ctx context.Context, nsid uint32) ([]nvme.NamespaceID, error) {
	b, err := c.Identify(ctx, nvme.CNSDescriptors, nsid, 0)
	if err != nil {
		return nil, err
	}
	return nvme.ParseNamespaceIDs(b)
}

// ActiveNamespaces reads the whole active namespace list, CNS 02h, page by page.
func (c *Controller) ActiveNamespaces(ctx context.Context) ([]uint32, error) {
	var all []uint32
	last := uint32(0)
	for {
		b, err := c.Identify(ctx, nvme.CNSActiveNamespaces, last, 0)
		if err != nil {
			return nil, err
		}
		ids, err := nvme.ParseNamespaceList(b)
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
func (c *Controller) GetLog(ctx context.Context, lid nvme.LID, nsid uint32, offset uint64, n int,
	lsp uint8, rae bool,
) ([]byte, error) {
	op := Op{Data: make([]byte, n)}
	op.SQE.SetOpcode(nvme.AdminGetLogPage)
	op.SQE.SetNSID(nsid)
	op.SQE.GetLog().Set(lid, uint64(n), offset, lsp, rae)
	_, err := c.command(ctx, fmt.Sprintf("get log %#x", lid), &op)
	return op.Data, err
}

// SetFeature sets a feature whose value is CDW11 and returns DW0.
func (c *Controller) SetFeature(ctx context.Context, fid nvme.FID, value uint32) (uint32, error) {
	var op Op
	op.SQE.SetOpcode(nvme.AdminSetFeatures)
	op.SQE.Features().Set(fid, value)
	cqe, err := c.command(ctx, fmt.Sprintf("set feature %#x", fid), &op)
	return cqe.DW0(), err
}

// GetFeature reads a feature that has no data and returns DW0.
func (c *Controller) GetFeature(ctx context.Context, fid nvme.FID) (uint32, error) {
	var op Op
	op.SQE.SetOpcode(nvme.AdminGetFeatures)
	op.SQE.SetCDW(10, uint32(fid))
	cqe, err := c.command(ctx, fmt.Sprintf("get feature %#x", fid), &op)
	return cqe.DW0(), err
}

// SetQueueCount requests n I/O queues and returns how many the controller grants, at most n.
func (c *Controller) SetQueueCount(ctx context.Context, n int) (int, error) {
	v, err := c.SetFeature(ctx, nvme.FeatureNumberOfQueues, uint32(nvme.MakeNumberOfQueues(n)))
	granted := nvme.NumberOfQueues(v)
	return min(n, granted.Submission(), granted.Completion()), err
}

// KeepAlive sends a Keep Alive.
func (c *Controller) KeepAlive(ctx context.Context) error {
	var op Op
	op.SQE.SetOpcode(nvme.AdminKeepAlive)
	_, err := c.command(ctx, "keep alive", &op)
	return err
}

// Abort sends an Abort for one command; aborted is the controller's answer.
func (c *Controller) Abort(ctx context.Context, sqid, cid uint16) (aborted bool, err error) {
	var op Op
	op.SQE.SetOpcode(nvme.AdminAbort)
	op.SQE.Abort().Set(sqid, cid)
	cqe, err := c.command(ctx, "abort", &op)
	return cqe.DW0()&nvme.AbortNotDone == 0, err
}

// Discover reads the Discovery log as libnvme does: the header, the entries, and the header again,
// until GENCTR stays the same.
func (c *Controller) Discover(ctx context.Context) (*nvme.DiscoveryHeader, []*nvme.DiscoveryEntry,
	error,
) {
	for range 10 {
		b, err := c.GetLog(ctx, nvme.LogDiscovery, 0, 0, 20, 0, true)
		if err != nil {
			return nil, nil, err
		}
		before, err := nvme.ParseDiscoveryHeader(b)
		if err != nil {
			return nil, nil, err
		}
		entries, err := c.discoveryEntries(ctx, before.NUMREC)
		if err != nil {
			return nil, nil, err
		}
		if b, err = c.GetLog(ctx, nvme.LogDiscovery, 0, 0, 20, 0, false); err != nil {
			return nil, nil, err
		}
		if after, err := nvme.ParseDiscoveryHeader(b); err != nil || *after == *before {
			return after, entries, err
		}
	}
	return nil, nil, errors.New("discovery log: GENCTR changed during each of 10 attempts")
}

func (c *Controller) discoveryEntries(ctx context.Context, n uint64) ([]*nvme.DiscoveryEntry,
	error,
) {
	const chunk = 4096
	if n > maxDiscovered {
		return nil, fmt.Errorf("discovery log: NUMREC %d, at most %d are read", n, maxDiscovered)
	}
	var entries []*nvme.DiscoveryEntry
	for off := uint64(0); off < n*nvme.DiscoveryEntrySize; off += chunk {
		size := min(n*nvme.DiscoveryEntrySize-off, chunk)
		b, err := c.GetLog(ctx, nvme.LogDiscovery, 0, nvme.DiscoveryHeaderSize+off, int(size), 0,
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

// checkIdentity applies the checks of the Linux host to Identify Controller (drivers/nvme/host:
// core.c, fabrics.c, rdma.c and tcp.c).
func (c *Controller) checkIdentity() error {
	id := c.id
	discovery := c.o.SubNQN == nvme.DiscoveryNQN
	switch {
	case id.CNTLID != c.cntlid:
		return fmt.Errorf("identify: CNTLID %#x, Connect said %#x", id.CNTLID, c.cntlid)
	case !discovery && id.KAS == 0:
		return errors.New("identify: keep alive is mandatory, KAS is 0")
	case !discovery && id.IOCCSZ < 4:
		return fmt.Errorf("identify: I/O capsules of %d bytes, at least 64 are needed",
			id.IOCCSZ*16)
	case !discovery && id.IORCSZ < 1:
		return fmt.Errorf("identify: I/O responses of %d bytes, at least 16 are needed",
			id.IORCSZ*16)
	case id.ICDOFF != 0:
		return fmt.Errorf("identify: ICDOFF %d, must be 0", id.ICDOFF)
	case c.t.Type() == nvme.TransportRDMA && id.SGLS&nvme.SGLSKeyed == 0:
		return fmt.Errorf("identify: SGLS %#x without keyed data blocks", id.SGLS)
	case c.t.Type() == nvme.TransportTCP && id.SGLS&3 == 0:
		return fmt.Errorf("identify: SGLS %#x without SGL support", id.SGLS)
	case id.CMIC&nvme.CMICANA != 0 && (id.MNAN == 0 || id.MNAN > id.NN):
		return fmt.Errorf("identify: MNAN %d with NN %d", id.MNAN, id.NN)
	case discovery && id.CNTRLTYPE != nvme.ControllerTypeDiscovery:
		return fmt.Errorf("identify: controller type %d on a discovery connection", id.CNTRLTYPE)
	}
	return nil
}

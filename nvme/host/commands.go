package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/nvme"
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

// SetFeature sets a feature to the value of CDW11 and returns DW0.
func (c *Controller) SetFeature(ctx context.Context, fid nvme.FID, value uint32) (uint32, error) {
	var op Op
	op.SQE.SetOpcode(nvme.AdminSetFeatures)
	op.SQE.Features().Set(fid, value)
	cqe, err := c.command(ctx, fmt.Sprintf("set feature %#x", fid), &op)
	return cqe.DW0(), err
}

// SetQueueCount requests n I/O queues and returns the number that the controller grants, at most n.
func (c *Controller) SetQueueCount(ctx context.Context, n int) (int, error) {
	v, err := c.SetFeature(ctx, nvme.FeatureNumberOfQueues, uint32(nvme.MakeNumberOfQueues(n)))
	granted := nvme.NumberOfQueues(v)
	return min(n, granted.Submission(), granted.Completion()), err
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

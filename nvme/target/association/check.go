package association

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// Check checks the fields common to admin and I/O queues.
func Check(sqe *nvme.ConnectSQE, data *nvme.ConnectData, q *fabric.QueueInfo) Refusal {
	switch {
	case sqe.SQSIZE() == 0:
		return TooDeep(sqe, q.MaxDepth)
	case q.QID >= 0 && int(sqe.QID()) != q.QID:
		// RDMA section 3.1.4: QID of the CM private data
		return malformed(nvme.ConnectOffsetQID, q.QID, sqe.QID())
	case sqe.QID() == 0 && sqe.KATO() > admin.MaxKeepAlive:
		return malformed(nvme.ConnectOffsetKATO, fmt.Sprintf("at most %d ms", admin.MaxKeepAlive),
			sqe.KATO())
	case sqe.QID() == 0 && data.HostID == [16]byte{}:
		// Base section 5.1.25.1.28: not zero over fabrics
		return badData(malformedStatus, nvme.ConnectDataOffsetHostID, "not 0", 0)
	}
	return Refusal{}
}

// Names reads the NQNs, and compares them with those of the PSK of the connection.
func Names(data *nvme.ConnectData, tls *fabric.TLS) (subNQN, hostNQN string, r Refusal) {
	const valid = "a valid NQN"
	subNQN, err := nvme.ParseNQN(&data.SUBNQN)
	if err != nil {
		return "", "", badData(malformedStatus, nvme.ConnectDataOffsetSUBNQN, valid, err)
	}
	// A host without a name, as SPDK's perf and identify are, is served where any host is.
	if hostNQN, err = nvme.ParseNQN(&data.HOSTNQN); err != nil && data.HOSTNQN[0] != 0 {
		return "", "", badData(malformedStatus, nvme.ConnectDataOffsetHOSTNQN, valid, err)
	}
	switch {
	case tls == nil:
	case tls.HostNQN != hostNQN:
		r = badHost(nvme.ConnectDataOffsetHOSTNQN, tls.HostNQN, hostNQN,
			"the PSK of TLS is that of another host")
	case tls.SubNQN != subNQN:
		r = badSubsystem(tls.SubNQN, subNQN,
			"the PSK of TLS is for another subsystem: nvme gen-tls-key --subsysnqn")
	case tls.Counts != nil && !tls.Counts():
		r = badSubsystem("a PSK that counts", subNQN,
			"the tls_key of the host has changed since the TLS handshake, or has expired")
	}
	return subNQN, hostNQN, r
}

// CheckAdmin checks that the host asks for a dynamic controller: there are no others.
func CheckAdmin(data *nvme.ConnectData) Refusal {
	if data.CNTLID == nvme.CNTLIDDynamic {
		return Refusal{}
	}
	return badData(malformedStatus, nvme.ConnectDataOffsetCNTLID,
		fmt.Sprintf("%#x", nvme.CNTLIDDynamic), fmt.Sprintf("%#x", data.CNTLID))
}

// Controller is a controller as Connect has made it.
type Controller struct {
	HostNQN   string
	HostID    [16]byte
	Admin     *fabric.QueueInfo // of its admin queue
	Entries   int               // of an I/O queue, at most
	Discovery bool              // it has no I/O queues
}

// GeneratedPSK returns the identity of the generated PSK that a connection uses, "" if none.
func GeneratedPSK(q *fabric.QueueInfo) string {
	if q.TLS == nil {
		return ""
	}
	return q.TLS.Generated
}

// CheckIO checks that an I/O queue is one of the same host on the same port, from the same address
// (ADR 0020): the identifiers of a host can be guessed. c is nil if the subsystem has no controller
// with the identifier. elsewhere: the host has it in another subsystem. The statuses have no DNR,
// so that a host connects the whole controller again after a change of its address.
func CheckIO(sqe *nvme.ConnectSQE, data *nvme.ConnectData, q *fabric.QueueInfo, subNQN,
	hostNQN string, c *Controller, elsewhere func() bool,
) Refusal {
	other := func(offset uint16, expected, received any) Refusal {
		return badData(refusedStatus, offset, expected, received)
	}
	port := func(q *fabric.QueueInfo) string {
		return fmt.Sprintf("%v, port ID %d", q.Transport, q.PortID)
	}
	const cntlid = nvme.ConnectDataOffsetCNTLID
	announced := q.CNTLID // by RDMA hosts; old ones leave it 0
	switch {
	case (c == nil || c.HostNQN != hostNQN) && elsewhere():
		return other(nvme.ConnectDataOffsetSUBNQN, "the subsystem of the controller", subNQN)
	case c == nil:
		return other(cntlid, "a controller of the host", fmt.Sprintf("%#x", data.CNTLID))
	case q.QID > 0 && announced != 0 && announced != nvme.CNTLIDDynamic && announced != data.CNTLID:
		return other(cntlid, fmt.Sprintf("%#x", announced), fmt.Sprintf("%#x", data.CNTLID))
	// Of a controller that is not its own a peer is told no more than of one that does not exist.
	case c.HostNQN != hostNQN:
		return other(cntlid, c.HostNQN, hostNQN)
	case c.Admin.Remote.Addr() != q.Remote.Addr():
		r := other(cntlid, c.Admin.Remote.Addr(), q.Remote.Addr())
		r.Elsewhere = true
		return r
	// zero is to be ignored here (Base figure 546)
	case data.HostID != [16]byte{} && c.HostID != data.HostID:
		return other(nvme.ConnectDataOffsetHostID, fmt.Sprintf("%x", c.HostID),
			fmt.Sprintf("%x", data.HostID))
	case c.Admin.PortID != q.PortID || c.Admin.Transport != q.Transport:
		return other(cntlid, port(c.Admin), port(q))
	case (c.Admin.TLS == nil) != (q.TLS == nil) || GeneratedPSK(c.Admin) != GeneratedPSK(q):
		return other(cntlid, "TLS as on the admin queue", "another")
	case c.Discovery:
		// no I/O queues (Base section 3.1.3.3)
		return malformed(nvme.ConnectOffsetQID, 0, sqe.QID())
	case int(sqe.SQSIZE()) >= min(c.Entries, q.MaxDepth):
		return TooDeep(sqe, min(c.Entries, q.MaxDepth))
	}
	return Refusal{}
}

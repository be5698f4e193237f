package cmwire

import "fmt"

// RejSize is the size of the private data of a reject in bytes, as exchanged by Linux hosts and
// targets (include/linux/nvme-rdma.h, struct nvme_rdma_cm_rej).
const RejSize = 4

// Rej is the private data of a reject, controller to host (RDMA section 3.1.4, figure 7).
type Rej struct {
	RecFmt uint16
	Status Status
}

// Status is STS of a reject (RDMA section 3.5.1, figure 11). Its zero value, Accepted, is never
// sent.
type Status uint16

// The statuses.
const (
	Accepted       Status = 0
	InvalidLength  Status = 1 // the private data is too short
	InvalidRecFmt  Status = 2
	InvalidQID     Status = 3
	InvalidHSQSize Status = 4
	InvalidHRQSize Status = 5
	NoResources    Status = 6
	InvalidIRD     Status = 7 // inbound RDMA READ depth
	InvalidORD     Status = 8 // outbound RDMA READ depth
	InvalidCNTLID  Status = 9
	statusCount           = 10
)

var statusNames = [statusCount]string{
	"accepted", "invalid private data length", "invalid record format", "invalid queue ID",
	"invalid host send queue size",
	"invalid host receive queue size", "no resources", "invalid inbound RDMA READ depth",
	"invalid outbound RDMA READ depth",
	"invalid controller ID",
}

// String is "invalid queue ID (3)".
func (s Status) String() string {
	name := "reserved status"
	if s < statusCount {
		name = statusNames[s]
	}
	return fmt.Sprintf("%s (%d)", name, uint16(s))
}

// Error makes a Status usable as an error.
func (s Status) Error() string { return s.String() }

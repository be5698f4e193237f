package nvme

import "cmp"

// TransportType is TRTYPE of a discovery log page entry (Base section 5.1.12.3.1).
type TransportType uint8

// The transport types.
const (
	TransportRDMA TransportType = 1
	TransportFC   TransportType = 2
	TransportTCP  TransportType = 3
	TransportLoop TransportType = 254
)

var transportNames = [256]string{
	TransportRDMA: "rdma", TransportFC: "fc", TransportTCP: "tcp", TransportLoop: "loop",
}

// String is the name nvme-cli uses: "rdma", "fc", "tcp" or "loop".
func (t TransportType) String() string { return cmp.Or(transportNames[t], "unknown") }

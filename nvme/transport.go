package nvme

// TransportType is TRTYPE of a discovery log page entry (Base section 5.1.12.3.1).
type TransportType uint8

// The transport types.
const (
	TransportRDMA TransportType = 1
	TransportFC   TransportType = 2
	TransportTCP  TransportType = 3
	TransportLoop TransportType = 254
)

// String is the name nvme-cli uses: "rdma", "fc", "tcp" or "loop".
func (t TransportType) String() string {
	switch t {
	case TransportRDMA:
		return "rdma"
	case TransportFC:
		return "fc"
	case TransportTCP:
		return "tcp"
	case TransportLoop:
		return "loop"
	}
	return "unknown"
}

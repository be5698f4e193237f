package fabric

// Stack is the choice of an RDMA stack for a listener.
type Stack uint8

// The choices.
const (
	// AnyStack is the device that has the address, or SoftStack if there is none.
	AnyStack Stack = iota
	// DeviceStack is rdma-core and an RDMA device.
	DeviceStack
	// SoftStack is RoCEv2 in this program, which needs no device.
	SoftStack
	// SoftIWARPStack is iWARP in this program, over TCP.
	SoftIWARPStack
)

// Soft reports whether the stack needs no device.
func (s Stack) Soft() bool { return s == SoftStack || s == SoftIWARPStack }

// String returns the word used in the configuration.
func (s Stack) String() string {
	return [...]string{"any", "device", "soft", "soft-iwarp"}[s]
}

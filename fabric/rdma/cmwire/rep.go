package cmwire

// RepSize is the size of the private data of an accept in bytes.
const RepSize = 32

// Rep is the private data of an accept, controller to host (RDMA section 3.1.4, figure 6).
type Rep struct {
	RecFmt uint16
	// CRQSize is the number of capsules the controller can receive.
	CRQSize uint16
	_       [28]byte
}
